"""LoRA on CPUs: each row gets its own adapter's product, and a row without an adapter nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agent_rft.actors.engine.worker.grouped_lora import GroupedLora

WIDTH, RANK, OUT, SLOTS = 8, 2, (4, 6), 3
IDS = {0: 11, 1: 12, 2: 13}
"""Slot -> id of the adapter in it."""


def prepared(slots: list[int]) -> GroupedLora:
    """Operations for a batch whose rows, each a request of one token, use these slots; -1: no adapter."""
    from vllm.lora.layers import LoRAMapping

    grouped = GroupedLora(64, 64, "cpu")
    mapping = tuple(IDS.get(slot, 0) for slot in slots)
    grouped.update_metadata(LoRAMapping(mapping, mapping, is_prefill=True), list(IDS.values()), SLOTS + 1, 100)
    return grouped


def stacks() -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    torch.manual_seed(0)
    a = tuple(torch.randn(SLOTS, 1, RANK, WIDTH) for _ in OUT)
    return a, tuple(torch.randn(SLOTS, 1, out, RANK) for out in OUT)


@pytest.mark.parametrize("slots", [[0, 2, 0, -1, 1], [1, 1, 1], [-1, -1], [2, -1, -1]], ids=str)
def test_each_row_has_its_own_adapter(slots: list[int]) -> None:
    a, b = stacks()
    x, y = torch.randn(len(slots), WIDTH), torch.randn(len(slots), sum(OUT))
    rows = [
        y[i] + (0 if slot < 0 else torch.cat([x[i] @ a[j][slot, 0].T @ b[j][slot, 0].T for j in range(len(OUT))]))
        for i, slot in enumerate(slots)
    ]
    prepared(slots).add_lora_linear(y, x, a, b, 1.0, OUT)
    torch.testing.assert_close(y, torch.stack(rows))


def test_the_output_head_may_have_columns_of_padding() -> None:
    a, b = stacks()
    x, y = torch.randn(2, WIDTH), torch.zeros(2, OUT[0] + 3)
    prepared([1, -1]).add_lora_logits(y, x, a[0], b[0], 1.0)
    torch.testing.assert_close(y[0, : OUT[0]], x[0] @ a[0][1, 0].T @ b[0][1, 0].T)
    assert not y[1].any() and not y[:, OUT[0] :].any()
