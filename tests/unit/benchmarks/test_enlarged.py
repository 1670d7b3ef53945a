"""Enlarged models."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.enlarged import Size, enlarged
from examples.ledger.services import __file__ as services_file

BASE = Path(services_file).parent / "base"


def test_a_larger_model_computes_the_same_logits(tmp_path: Path) -> None:
    folder = enlarged(BASE, Size(layers=4, hidden=256, intermediate=512, heads=8), tmp_path)
    small, large = (AutoModelForCausalLM.from_pretrained(path) for path in (BASE, folder))
    tokens = torch.arange(3, 67)[None]
    with torch.no_grad():
        expected, got = (model(tokens).logits for model in (small, large))
    assert sum(p.numel() for p in large.parameters()) > 3 * sum(p.numel() for p in small.parameters())
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-4)
