"""Float32 products have full precision, with MKL as with oneDNN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from agent_rft.trainer.model.onednn_matmul import MAX_ERROR, enable_onednn_matmul


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def test_products_have_full_precision_whether_or_not_this_processor_has_faster_ones() -> None:
    enable_onednn_matmul()
    left, right = torch.randn(500, 300), torch.randn(300, 700)
    exact = left.double() @ right.double()
    assert ((left @ right).double() - exact).norm() < MAX_ERROR * exact.norm()


def test_products_whose_factors_are_rounded_to_bfloat16_are_not_used() -> None:
    def rounded(left: Tensor, right: Tensor) -> Tensor:
        return left.bfloat16().float() @ right.bfloat16().float()

    assert not enable_onednn_matmul(rounded)
    assert torch.get_float32_matmul_precision() == "highest"
