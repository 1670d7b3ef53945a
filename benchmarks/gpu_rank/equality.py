"""The rank's loss and gradient against the same rank on a CPU in float32.

In bfloat16 the gradient's error is bounded as in `benchmarks.gpu`: by that of transformers' eager model in bfloat16.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from benchmarks.gpu import correctness
from benchmarks.gpu.correctness import FLOAT32_ERROR, TIMES_EAGER
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.machine import Machine
from benchmarks.gpu_rank.gradients import first_update
from benchmarks.gpu_rank.reference import reference
from benchmarks.gpu_rank.trial_rank import Layout, small_model, start_rank

LAYOUTS = (
    Layout(zero_stage=0, dtype="float32"),
    Layout(zero_stage=1),
    Layout(zero_stage=3),  # gathers, reduces and computes on streams of its own
    Layout(zero_stage=2, offload="optimizer_and_activations"),  # copies to the host while it computes
    Layout(zero_stage=2),
)


def figures(machine: Machine) -> list[Figure]:
    """Errors of each layout."""
    return [
        Figure(
            f"gradients of the rank, {layout}, against a CPU in float32",
            "relative error",
            functools.partial(_measure, machine, layout),
            20,
            f"<= {FLOAT32_ERROR:g}" if layout.dtype == "float32" else f"<= {TIMES_EAGER} x eager in bfloat16",
            limit_s=120,
        )
        for layout in LAYOUTS
    ]


def _measure(machine: Machine, layout: Layout) -> dict[str, Any]:
    expected = reference(machine)
    errors = first_update(start_rank(machine, small_model(machine), layout), correctness.batch_of(machine)).errors(
        expected
    )
    if layout.dtype == "float32":
        exact = max(errors.values()) <= FLOAT32_ERROR
        return {"value": errors["gradients"], "exact": exact, "more": {"exact": exact, "loss": errors["loss"]}}
    exact_model = correctness.eager(machine, torch.float32)
    eager = correctness.eager(machine, torch.bfloat16).errors(exact_model)
    exact = errors["gradients"] <= max(TIMES_EAGER * eager["gradients"], FLOAT32_ERROR)
    more = {"exact": exact, "loss": errors["loss"], "loss of eager": eager["loss"]}
    return {"value": errors["gradients"], "baseline": eager["gradients"], "exact": exact, "more": more}
