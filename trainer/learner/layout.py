"""The layout of a bucket of weights, which learner and engines exchange; without torch, since planning uses it too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MAX_BUCKET_BYTES = 256 * 2**20
ITEMSIZES = {
    **{"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "int32": 4, "int64": 8},
    **{"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8},
}
"""Bytes per element by torch's name of a dtype."""

TensorInfo = tuple[str, str, tuple[int, ...]]
"""Name, dtype (such as "bfloat16") and shape."""
Layout = list[TensorInfo]
"""The tensors of a bucket, stored back to back."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What an engine did with one version's buckets.

    `checksums` has one entry per worker process of the engine: the sum of those of the buckets that it loaded.
    `missed` are tensors of them that no parameter took. `pause_s` is the pause of generation.
    """

    pause_s: float
    checksums: tuple[int, ...]
    missed: tuple[str, ...] = ()


def num_bytes(layout: Iterable[Sequence[Any]]) -> int:
    """Total bytes of tensors, each given as [name, dtype, shape]."""
    return sum(math.prod(shape) * ITEMSIZES[dtype] for _, dtype, shape in layout)
