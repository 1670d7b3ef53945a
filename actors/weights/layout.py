"""What a bucket of weights holds, as learner and engines tell each other; without torch, so that planning may ask."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

MAX_BUCKET_BYTES = 256 * 2**20
ITEMSIZES = {
    **{"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "int32": 4, "int64": 8},
    **{"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8},
}
"""Bytes of an element, by torch's name of its dtype."""

TensorInfo = tuple[str, str, tuple[int, ...]]
"""Name, dtype (such as "bfloat16") and shape."""
Layout = list[TensorInfo]
"""A bucket's tensors back to back: name, torch dtype name, shape."""


def num_bytes(layout: Iterable[Sequence[Any]]) -> int:
    """Size of tensors given as [name, dtype, shape] each."""
    return sum(math.prod(shape) * ITEMSIZES[dtype] for _, dtype, shape in layout)
