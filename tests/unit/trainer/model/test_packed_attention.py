"""All ways to compute packed attention agree; those of GPUs are compared by `benchmarks.gpu`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agent_rft.trainer.model.packed_attention import (
    Packing,
    choose_attention,
    loop_attention,
    packed_attention,
    varlen_attention,
)
from benchmarks.gpu.attention import BACKENDS, backends_on

CPU = torch.device("cpu")
LENGTHS = [5, 1, 150, 20]


CASES = [(None, None, 4), (None, 0.3, 2), (7, None, 2), (7, 0.3, 4), (1, None, 1)]
"""Window, scaling and key heads."""


def outputs(
    backend: str | None, window: int | None, scaling: float | None, key_heads: int, trains: bool = True
) -> list[Tensor]:
    """The result and, if it trains, the gradients of query, key and value."""
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(1, heads, sum(LENGTHS), 8, generator=generator).requires_grad_(trains)
        for heads in (4, key_heads, key_heads)
    ]
    outer = torch.randn(1, sum(LENGTHS), 4, 8, generator=generator)
    output, _ = packed_attention(
        torch.nn.Module(),
        *inputs,
        None,
        packing=Packing.from_lengths(LENGTHS, CPU),
        attend=None if backend is None else BACKENDS[backend],
        scaling=scaling,
        sliding_window=window,
    )
    return [output] if not trains else [output, *torch.autograd.grad(output, inputs, outer)]


@pytest.mark.parametrize("backend", backends_on("cpu"))
@pytest.mark.parametrize(("window", "scaling", "key_heads"), CASES)
def test_a_backend_computes_what_the_default_computes(
    backend: str, window: int | None, scaling: float | None, key_heads: int
) -> None:
    theirs = outputs(None, window, scaling, key_heads)
    for ours, expected in zip(outputs(backend, window, scaling, key_heads), theirs, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize(("window", "scaling", "key_heads"), CASES)
def test_flex_attention_computes_what_the_default_computes(
    window: int | None, scaling: float | None, key_heads: int
) -> None:
    """Only forward: torch has no backward pass for it on CPUs."""
    ours, theirs = (outputs(backend, window, scaling, key_heads, trains=False) for backend in ("flex", None))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_half_precision_on_gpus_uses_the_flash_kernel_where_it_takes_the_head() -> None:
    assert choose_attention("cpu", torch.float32) is loop_attention
    assert choose_attention("cuda", torch.float32) is loop_attention
    assert choose_attention("cuda", torch.bfloat16) is varlen_attention
    assert choose_attention("cuda", torch.bfloat16, head_size=512) is loop_attention
    assert set(backends_on("cuda")) <= set(BACKENDS)
