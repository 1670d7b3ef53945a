"""Faster matrix products in float32 on cores.

PyTorch computes them with MKL, which is written for Intel's processors. With the precision "medium" it asks oneDNN,
which on others is twice as fast, with the same result. Where a processor has units for it, oneDNN rounds the factors
to bfloat16, so it must be tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

SIZES: Final = ((256, 256, 256), (1024, 64, 512))
"""Rows, inner size and columns of the products that are tried."""
ERROR: Final = 2e-6
"""The largest relative error of a product in float32, which has about 4e-7; factors in bfloat16 give 2e-3."""


def use_faster_products(product: Callable[[Tensor, Tensor], Tensor] = torch.matmul) -> bool:
    """Let oneDNN compute this process's float32 products, if it does so in full precision; returns whether it does."""
    torch.set_float32_matmul_precision("medium")
    exact = all(_error(product, *size) < ERROR for size in SIZES)
    if not exact:
        torch.set_float32_matmul_precision("highest")
    return exact


def _error(product: Callable[[Tensor, Tensor], Tensor], rows: int, inner: int, columns: int) -> float:
    """The relative error of a product of random factors."""
    random = torch.Generator().manual_seed(0)
    left, right = (torch.randn(shape, generator=random) for shape in ((rows, inner), (inner, columns)))
    exact = left.double() @ right.double()
    return float((product(left, right).double() - exact).norm() / exact.norm())
