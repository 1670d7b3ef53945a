"""A bucket of weights: its checksum, and its tensors as views of its bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agent_rft.trainer.learner.weight_buckets import num_bytes

MASK = (1 << 64) - 1
_WORDS_PER_ROW = 1 << 14
"""Number of 8-byte words per row of the checksum. A row fits in the CPU cache."""
_ROWS_PER_STEP = {"cpu": 1, "cuda": 1 << 11}
_ROW_FACTOR = 0x9E3779B97F4A7C15
"""Odd constant. Row i of the checksum is multiplied by (2 * i + 1) * _ROW_FACTOR."""


def compute_checksum(data: Tensor) -> int:
    """Return a 64-bit checksum of bytes (uint8, on any device).

    The checksum adds all 8-byte words, each multiplied by a pseudo-random odd number, modulo 2^64. As in multilinear
    hashing, one changed word always changes the sum, and several changes cancel out only by chance.
    """
    tail = data.numel() % (8 * _WORDS_PER_ROW)
    padded = torch.nn.functional.pad(data[data.numel() - tail :], (0, -tail % (8 * _WORDS_PER_ROW)))
    factors, step = _make_word_factors(data.device), _ROWS_PER_STEP[data.device.type]
    total = row = 0
    for part in (data[: data.numel() - tail], padded):
        rows = part.view(torch.int64).view(-1, _WORDS_PER_ROW)
        for first in range(0, len(rows), step):
            for value in (rows[first : first + step] * factors).sum(dim=1).tolist():
                total += value * (2 * row + 1) * _ROW_FACTOR
                row += 1
    return total & MASK


def _make_word_factors(device: torch.device) -> Tensor:
    numbers = torch.randint(-(1 << 63), (1 << 63) - 1, (_WORDS_PER_ROW,), generator=torch.Generator().manual_seed(1))
    return (numbers | 1).to(device)


def map_bytes(path: Path, num_bytes: int) -> Tensor:
    """Return the first `num_bytes` bytes of a file as a memory-mapped uint8 tensor."""
    return torch.from_file(str(path), size=num_bytes, dtype=torch.uint8)


def split_tensors(data: Tensor, layout: Iterable[Sequence[Any]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and value of each tensor of a bucket. The tensors are views of `data`."""
    offset = 0
    for name, dtype, shape in layout:
        size = num_bytes([(name, dtype, shape)])
        yield name, data[offset : offset + size].view(getattr(torch, dtype)).reshape(shape)
        offset += size
