"""Learner steps at Qwen3's sizes: tokens a second, share of the device's peak (MFU), peak memory against the plan's.

A step is one micro-batch and one update of all weights, so the shorter ones pay much for the optimizer; its time is
listed beside that of the two passes.
"""

from __future__ import annotations

import functools
import itertools
from statistics import median
from typing import Any

from agent_rft.cluster.planning.memory_estimates import GIB
from agent_rft.trainer.model.policy import DeviceBatch
from benchmarks.gpu.figures import Figure, NotMeasured
from benchmarks.gpu.machine import PEAK_FLOPS, Machine
from benchmarks.gpu.shapes import BYTES_PER_PARAMETER, QWEN3, TINY, Shape
from benchmarks.gpu.step import MasterAdamW, Mix, Settings, build_policy, loss_of, micro_batch

TOKENS = {"4k": 4096, "16k": 16_384, "64k": 65_536}
AIMS = {
    ("0.6B", "16k"): ("MFU >= 0.25", "prime-rl, one H100: 0.11"),
    ("0.6B", "64k"): ("", "prime-rl, one H100: 0.268"),
    ("1.7B", "16k"): ("MFU >= 0.40", ""),
    ("4B", "16k"): ("MFU >= 0.40", ""),
}


def measure(machine: Machine, shape: Shape, num_tokens: int, mix: Mix, settings: Settings) -> dict[str, Any]:
    """One learner step, repeated."""
    needed = shape.parameters * BYTES_PER_PARAMETER
    if needed > machine.memory_bytes:
        raise NotMeasured(
            f"{shape.parameters / 1e9:.1f}B parameters at {BYTES_PER_PARAMETER} bytes take {needed / GIB:.0f} GiB "
            f"without activations; the GPU has {machine.memory_bytes / GIB:.0f} GiB"
        )
    machine.forget()
    policy = build_policy(machine, shape, settings)
    adamw = MasterAdamW(policy, settings.adamw)
    # Other lengths in each run, as in training: some kernels are built for lengths, and masks for a packing.
    packed = [micro_batch(num_tokens, mix, shape.vocabulary, seed) for seed in range(2 if machine.tiny else 20)]
    batches = itertools.cycle([DeviceBatch.from_micro_batch(one, machine.device) for one in packed])

    def passes() -> None:
        batch = next(batches)
        batch.packing.masks.clear()
        loss_of(policy, batch)[0].backward()

    times = machine.times(passes, adamw.step)
    clocks = machine.clocks()
    flops = median(shape.flops(one.lengths, one.num_trained) for one in packed)
    flops_6n = median(shape.flops_6n(one.lengths) for one in packed)
    return {
        "value": num_tokens / times.total,
        "runs": times.runs,
        "clocks": clocks,
        "sequences": median(len(one.lengths) for one in packed),
        "longest": max(max(one.lengths) for one in packed),
        "trained": median(one.num_trained for one in packed),
        "more": {
            "MFU": flops / times.total / PEAK_FLOPS,
            "MFU as 6N": flops_6n / times.total / PEAK_FLOPS,
            "passes s": times.of(0),
            "optimizer s": times.of(1),
            "peak GiB": machine.peak_gib(),
            "plan GiB": shape.plan_gib(num_tokens),
        },
    }


def figures(machine: Machine) -> list[Figure]:
    """Sizes by tokens by mix, small ones first."""
    sizes = {"tiny": TINY} if machine.tiny else QWEN3
    tokens = {"64": 64} if machine.tiny else TOKENS
    mixes: list[Mix] = ["rollouts", "one"]
    found = []
    for tokens_name, num_tokens in tokens.items():
        for size, shape in sizes.items():
            if size == "8B":
                continue
            for mix in mixes:
                aim, anchor = AIMS.get((size, tokens_name), ("", "")) if mix == "rollouts" else ("", "")
                work = functools.partial(measure, machine, shape, num_tokens, mix, Settings())
                name = f"learner {size}, {tokens_name}, {mix}"
                found.append(Figure(name, "tokens/s", work, 20 if num_tokens < 60_000 else 60, aim, anchor))
    large = functools.partial(measure, machine, QWEN3["8B"], 4096, "rollouts", Settings())
    return [
        *found,
        Figure("learner 8B, 4k, rollouts", "tokens/s", large, 30),
        Figure("learner 4B LoRA, 16k, rollouts", "tokens/s", _lora, 0, "MFU >= 0.30", "prime-rl, one H100: 0.22"),
    ]


def _lora() -> dict[str, Any]:
    raise NotMeasured("the learner has no LoRA yet")
