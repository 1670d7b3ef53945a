"""Training steps of the rank: time, tokens per second, share of the device's peak (MFU), and memory next to the plan's.

A step is one micro-batch of 16k tokens and one update.
"""

from __future__ import annotations

import functools
import itertools
import resource
from collections.abc import Sequence
from statistics import median
from typing import Any

from agent_rft.cluster.planning.memory_estimates import GIB
from agent_rft.spec.model_options import LoraSpec
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.learner import AIMS
from benchmarks.gpu.machine import PEAK_FLOPS, Machine
from benchmarks.gpu.shapes import QWEN3, TINY, OneRank, tensors_gib
from benchmarks.gpu.step import micro_batch
from benchmarks.gpu_rank.trial_rank import Layout, model_folder, start_rank

NUM_TOKENS = 16_384
LAYOUTS = (
    Layout(zero_stage=1),
    Layout(lora=LoraSpec(rank=32)),
    Layout(zero_stage=2, offload="optimizer"),
    Layout(zero_stage=2, offload="optimizer_and_activations"),
)
STAGES = (
    Layout(zero_stage=3),
    Layout(zero_stage=2),
    Layout(zero_stage=0, dtype="float32"),  # in bfloat16 the rank raises the stage to 1
    Layout(zero_stage=1, kl_coef=0.01),
    Layout(zero_stage=3, kl_coef=0.01),
)
"""The other stages, which one rank gains nothing from, and steps with a reference model."""
SECONDS = {"0.6B": 20.0, "1.7B": 30.0}
SLOW = 2
"""Factor by which a step takes longer in float32, or with the optimizer on the host."""


def figures(machine: Machine) -> list[Figure]:
    """Both sizes with the default settings, with LoRA, and offloaded."""
    return _figures(machine, LAYOUTS)


def stages(machine: Machine) -> list[Figure]:
    """Both sizes with the other ZeRO stages, and with a reference model."""
    return _figures(machine, STAGES)


def _figures(machine: Machine, layouts: Sequence[Layout]) -> list[Figure]:
    found = []
    for layout in layouts:
        for size, took_s in SECONDS.items():
            aim, anchor = AIMS.get((size, "16k"), ("", "")) if layout == Layout() else ("", "")
            takes_s = took_s * (SLOW if layout.dtype == "float32" or layout.offload != "none" else 1)
            work = functools.partial(_measure, machine, size, layout)
            name = f"rank step {size}, 16k, {layout}"
            found.append(Figure(name, "tokens/s", work, takes_s, aim, anchor, limit_s=3 * takes_s))
    return found


def _measure(machine: Machine, size: str, layout: Layout) -> dict[str, Any]:
    shape, num_tokens = (TINY, 64) if machine.tiny else (QWEN3[size], NUM_TOKENS)
    itemsize = 2 if layout.dtype == "bfloat16" else 4
    one_rank = OneRank(num_tokens, zero_stage=layout.zero_stage, offload=layout.offload)
    plan = shape.plan_memory(one_rank, itemsize, layout.lora, keeps_reference=layout.kl_coef > 0)
    # Other lengths in each run, as in training: some kernels are built for lengths.
    batches = [micro_batch(num_tokens, "rollouts", shape.vocabulary, seed) for seed in range(2 if machine.tiny else 8)]
    coming = itertools.cycle(batches)
    folder = model_folder(machine, shape)
    machine.forget()
    rank = start_rank(machine, folder, layout)
    times = machine.times(lambda: rank.step([[next(coming)]], version=0), runs=6)
    frozen = layout.lora is not None
    flops = median(shape.flops(batch.lengths, batch.num_trained, frozen=frozen) for batch in batches)
    return {
        "value": num_tokens / times.total,
        "runs": times.runs,
        "clocks": machine.clocks(),
        "more": {
            "s": times.total,
            "MFU": flops / times.total / PEAK_FLOPS,
            "peak GiB": machine.peak_gib(),
            "plan GiB": tensors_gib(plan),
            "host GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB,
            "plan host GiB": plan.host_bytes / GIB,
        },
    }
