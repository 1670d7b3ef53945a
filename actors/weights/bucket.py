"""A bucket of weights: its checksum, and its tensors as views of its bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agent_rft.trainer.learner.layout import num_bytes

MASK = (1 << 64) - 1
_WORDS = 1 << 14
"""Words of 8 bytes in a row: a block of rows stays in the processor's cache."""
_ROWS = {"cpu": 1, "cuda": 1 << 11}
_ODD = 0x9E3779B97F4A7C15
"""Multiplies a row's number, so that equal rows at different places differ."""


def checksum(data: Tensor) -> int:
    """64 bits of bytes (uint8, on any device): a sum of all words of 8 bytes times pseudo-random odd numbers.

    As in multilinear hashing, one changed word always changes it, and several cancel only by chance; integers wrap.
    """
    tail = data.numel() % (8 * _WORDS)
    padded = torch.nn.functional.pad(data[data.numel() - tail :], (0, -tail % (8 * _WORDS)))
    factors, step = _factors(data.device), _ROWS[data.device.type]
    total = row = 0
    for part in (data[: data.numel() - tail], padded):
        rows = part.view(torch.int64).view(-1, _WORDS)
        for first in range(0, len(rows), step):
            for value in (rows[first : first + step] * factors).sum(dim=1).tolist():
                total += value * (2 * row + 1) * _ODD
                row += 1
    return total & MASK


def _factors(device: torch.device) -> Tensor:
    numbers = torch.randint(-(1 << 63), (1 << 63) - 1, (_WORDS,), generator=torch.Generator().manual_seed(1))
    return (numbers | 1).to(device)


def bytes_of(path: Path, num_bytes: int) -> Tensor:
    """A file's bytes, mapped."""
    return torch.from_file(str(path), size=num_bytes, dtype=torch.uint8)


def tensors_in(data: Tensor, layout: Iterable[Sequence[Any]]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a bucket as views of its memory, which they keep alive.

    Layer-wise reloading holds them until their layer is complete, and by then the file may be deleted.
    """
    offset = 0
    for name, dtype, shape in layout:
        size = num_bytes([(name, dtype, shape)])
        yield name, data[offset : offset + size].view(getattr(torch, dtype)).reshape(shape)
        offset += size
