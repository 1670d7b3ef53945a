"""Layout of the weight buckets that the learner sends to engines.

This module does not import torch, because job planning uses it without torch.
"""

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
"""Bytes per element, by the dtype's name in torch."""

TensorInfo = tuple[str, str, tuple[int, ...]]
"""Name, dtype (such as "bfloat16") and shape of a tensor."""
BucketLayout = list[TensorInfo]
"""Layout of a bucket: its tensors in the order in which their bytes are stored. There are no gaps between tensors."""


@dataclass(frozen=True, slots=True)
class WeightLoadResult:
    """Result of loading one version's buckets into an engine.

    `checksums` has one entry per worker process of the engine: the sum of the checksums of all buckets that it loaded.
    `unmatched_tensors` has the names of tensors that matched no parameter. `pause_s` is the time for which generation
    paused.
    """

    pause_s: float
    checksums: tuple[int, ...]
    unmatched_tensors: tuple[str, ...] = ()


def num_bytes(layout: Iterable[Sequence[Any]]) -> int:
    """Return the total bytes of tensors, each given as [name, dtype, shape]."""
    return sum(math.prod(shape) * ITEMSIZES[dtype] for _, dtype, shape in layout)
