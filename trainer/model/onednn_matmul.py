"""Faster float32 matmul on CPU with oneDNN.

By default, PyTorch uses MKL, which is written for Intel CPUs. With the precision "medium", PyTorch uses oneDNN, which
is twice as fast on other CPUs. On CPUs with bfloat16 units, oneDNN rounds the inputs to bfloat16; on all others, the
result is the same as with MKL. This module therefore tests the precision first, and only uses oneDNN if oneDNN does not
round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

SIZES: Final = ((256, 256, 256), (1024, 64, 512))
"""Rows, inner size and columns of the test matmuls."""
MAX_ERROR: Final = 2e-6
"""Largest accepted relative error. float32 matmul has about 4e-7; bfloat16 inputs give 2e-3."""


def enable_onednn_matmul(matmul: Callable[[Tensor, Tensor], Tensor] = torch.matmul) -> bool:
    """Use oneDNN for this process's float32 matmuls if oneDNN keeps full precision; return whether it is used."""
    torch.set_float32_matmul_precision("medium")
    exact = all(_measure_error(matmul, *size) < MAX_ERROR for size in SIZES)
    if not exact:
        torch.set_float32_matmul_precision("highest")
    return exact


def _measure_error(product: Callable[[Tensor, Tensor], Tensor], rows: int, inner: int, columns: int) -> float:
    """Return the relative error of the product of two random matrices."""
    random = torch.Generator().manual_seed(0)
    left, right = (torch.randn(shape, generator=random) for shape in ((rows, inner), (inner, columns)))
    exact = left.double() @ right.double()
    return float((product(left, right).double() - exact).norm() / exact.norm())
