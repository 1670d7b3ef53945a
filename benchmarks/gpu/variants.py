"""Ways to compute the same step: attention, torch.compile, AdamW, activation checkpointing, chunks of the head.

Each is compared with the reference of `correctness` before it is timed. The last figures use the fastest exact choices
together.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor, nn

from agent_rft.cluster.planning.memory_estimates import GIB
from agent_rft.trainer.model.logprobs import TokenLogProbs
from agent_rft.trainer.model.packed_attention import ATTENTION_NAME, Packing, packed_attention
from benchmarks.gpu import correctness, learner
from benchmarks.gpu.attention import BACKENDS, backends_on, default_backend
from benchmarks.gpu.figures import Figure, NotMeasured
from benchmarks.gpu.machine import Machine, error
from benchmarks.gpu.shapes import QWEN3, TINY
from benchmarks.gpu.step import Settings, micro_batch

HALF_ERROR, FLOAT32_ERROR = 1e-2, 1e-4
"""The largest error of attention alone, and of the head alone, against float32."""
TODAY = "today's defaults"
CHUNKS = {"64 MiB": 64 << 20, "256 MiB": 256 << 20, "1 GiB": 1 << 30, "4 GiB": 4 << 30}


def figures(machine: Machine) -> list[Figure]:
    """The parts alone, then whole steps with one change each, then with the best changes together."""
    half = machine.device.type != "cpu"
    backends = backends_on(machine.device.type)
    alone = [
        Figure(f"attention {name}, {mix}", "TFLOP/s", functools.partial(_attention, machine, name, mix), 15)
        for mix in ("rollouts", "one")
        for name in backends
    ]
    heads = [
        Figure(f"head, chunks of {name}", "tokens/s", functools.partial(_head, machine, size), 10, "memory <= 1/8")
        for name, size in CHUNKS.items()
    ]
    today = default_backend(machine.device.type, machine.dtype)
    changes: dict[str, Settings] = {TODAY: Settings()}
    changes |= {
        f"attention {name}": Settings(attention=f"{ATTENTION_NAME}_{name}") for name in backends if name != today
    }
    changes |= {
        "checkpoint every second layer": Settings(checkpoint_every=2),
        "checkpoint no layer": Settings(checkpoint_every=0),
        "torch.compile": Settings(compiled=True),
        "AdamW foreach": Settings(adamw="foreach"),
        **{f"chunks of {name}": Settings(chunk_bytes=size) for name, size in CHUNKS.items() if name != "256 MiB"},
    }
    steps = [
        Figure(_name(label), "tokens/s", functools.partial(_step, machine, label, settings), 40 if half else 5)
        for label, settings in changes.items()
    ]
    sizes = ["tiny"] if machine.tiny else [name for name in QWEN3 if name != "8B"]
    together = [
        Figure(
            f"step {size}, 16k, fastest exact settings",
            "tokens/s",
            functools.partial(_together, machine, size, list(changes)),
            40,
            *learner.AIMS.get((size, "16k"), ()),
        )
        for size in sizes
    ]
    return [
        *alone,
        *heads,
        *steps,
        *together,
        Figure("fastest exact settings", "", functools.partial(_fastest, machine, list(changes)), 0),
    ]


def _name(label: str) -> str:
    return f"step 0.6B, 16k, {label}"


def _step(machine: Machine, label: str, settings: Settings) -> dict[str, Any]:
    found = correctness.verdict(machine, settings)
    correctness.eager.cache_clear()
    shape, num_tokens = (TINY, 64) if machine.tiny else (QWEN3["0.6B"], 16_384)
    measured = learner.measure(machine, shape, num_tokens, "rollouts", settings)
    torch.compiler.reset()
    more = {"exact": found["exact"]} | measured["more"]
    baseline = None if label == TODAY else machine.results.value(_name(TODAY))
    return found | measured | {"baseline": baseline, "settings": dataclasses.asdict(settings), "more": more}


def _best(machine: Machine, labels: list[str]) -> Settings:
    """For each setting the fastest exact choice that was measured."""
    lines = machine.results.lines
    measured = {label: lines[_name(label)] for label in labels if lines.get(_name(label), {}).get("exact")}
    if TODAY not in measured:
        raise NotMeasured(f"{_name(TODAY)!r} was not measured, or is not exact")
    best = dataclasses.asdict(Settings())
    speeds = dict.fromkeys(best, measured[TODAY]["value"])
    for line in measured.values():
        for key, value in line["settings"].items():
            if value != getattr(Settings(), key) and line["value"] > speeds[key]:
                best[key], speeds[key] = value, line["value"]
    return Settings(**best)


def _together(machine: Machine, size: str, labels: list[str]) -> dict[str, Any]:
    settings = _best(machine, labels)
    found = correctness.verdict(machine, settings)
    correctness.eager.cache_clear()
    shape, num_tokens = (TINY, 64) if machine.tiny else (QWEN3[size], 16_384)
    measured = learner.measure(machine, shape, num_tokens, "rollouts", settings)
    torch.compiler.reset()
    baseline = machine.results.value(f"learner {size}, 16k, rollouts")
    more = {"exact": found["exact"]} | measured["more"]
    return found | measured | {"baseline": baseline, "settings": dataclasses.asdict(settings), "more": more}


def _fastest(machine: Machine, labels: list[str]) -> dict[str, Any]:
    settings = dataclasses.asdict(_best(machine, labels))
    changed = {key: value for key, value in settings.items() if value != getattr(Settings(), key)}
    attention = {
        mix: max(
            (line["value"], name.removeprefix("attention ").removesuffix(f", {mix}"))
            for name, line in machine.results.lines.items()
            if name.startswith("attention ") and name.endswith(f", {mix}") and line.get("exact")
        )[1]
        for mix in ("rollouts", "one")
    }
    return {"value": ", ".join(f"{key}={value}" for key, value in changed.items()) or TODAY, "more": attention}


def _attention(machine: Machine, backend: str, mix: Any) -> dict[str, Any]:
    """Forward and backward pass of one layer of the 4B model."""
    shape = TINY if machine.tiny else QWEN3["4B"]
    batch = micro_batch(64 if machine.tiny else 16_384, mix, shape.vocabulary)
    packing = Packing.from_lengths(batch.lengths, machine.device)
    torch.manual_seed(0)
    # As projections return them: [N, heads, head_dim], transposed.
    exact = [
        torch.randn(1, batch.num_tokens, heads, shape.head_dim, device=machine.device).to(machine.dtype).transpose(1, 2)
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    ]
    outer = torch.randn(1, batch.num_tokens, shape.heads, shape.head_dim, device=machine.device).to(machine.dtype)

    def run(name: str, inputs: list[Tensor]) -> list[Tensor]:
        q, k, v = (tensor.detach().requires_grad_() for tensor in inputs)
        output, _ = packed_attention(nn.Module(), q, k, v, None, packing=packing, attend=BACKENDS[name])
        return [output.detach(), *torch.autograd.grad(output, (q, k, v), outer.to(output.dtype))]

    def reference() -> list[Tensor]:
        """In float32, where torch has no kernel for groups that does without all scores."""
        q, k, v = (tensor.float() for tensor in exact)
        groups = shape.heads // shape.kv_heads
        output, *gradients = run("loop", [q, *(tensor.repeat_interleave(groups, dim=1) for tensor in (k, v))])
        return [output, gradients[0], *(tensor.unflatten(1, (-1, groups)).sum(2) for tensor in gradients[1:])]

    found = error(run(backend, exact), reference())
    machine.forget()
    times = machine.times(lambda: run(backend, exact))
    other = micro_batch(batch.num_tokens, mix, shape.vocabulary, seed=1)
    packing = Packing.from_lengths(other.lengths, machine.device)
    once = machine.times(lambda: run(backend, exact), warmups=0, runs=1).total
    pairs = sum(length * (length + 1) / 2 for length in batch.lengths)
    flops = 12 * shape.heads * shape.head_dim * pairs
    limit = FLOAT32_ERROR if machine.dtype == torch.float32 else HALF_ERROR
    more = {"exact": found <= limit, "error": found, "s": times.total, "s with new lengths": once}
    return {"value": flops / times.total / 1e12, "exact": found <= limit, "runs": times.runs, "more": more}


def _head(machine: Machine, chunk_bytes: int) -> dict[str, Any]:
    """Log-probabilities of 16k tokens, forward and backward, at the width of the 0.6B model."""
    tokens, hidden_size, vocabulary = (64, 32, 97) if machine.tiny else (16_384, 1024, 151_936)
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(vocabulary, hidden_size, device=machine.device, dtype=machine.dtype) * 0.02)
    hidden = torch.randn(tokens, hidden_size, device=machine.device, dtype=machine.dtype, requires_grad=True)
    targets = torch.randint(vocabulary, (tokens,), device=machine.device)
    head = TokenLogProbs(weight, 1.0, chunk_bytes)
    few = slice(512)
    ours = _gradients(head(hidden[few], targets[few])[0], hidden, weight)
    single = hidden.detach().float().requires_grad_(), weight.detach().float().requires_grad_()
    logits = (single[0][few] @ single[1].T).log_softmax(-1).gather(1, targets[few, None])[:, 0]
    found = error(ours, _gradients(logits, *single))
    del single, logits, ours

    def work() -> None:
        torch.autograd.grad(head(hidden, targets)[0].sum(), (hidden, weight))

    machine.forget()
    before = torch.cuda.memory_allocated() / GIB if machine.device.type == "cuda" else 0.0
    times = machine.times(work)
    limit = FLOAT32_ERROR if machine.dtype == torch.float32 else HALF_ERROR
    full = tokens * vocabulary * 4 / GIB
    gradients = (hidden.nbytes + weight.nbytes) / GIB
    peak = machine.peak_gib() - before - gradients
    more = {"exact": found <= limit, "error": found, "peak GiB": peak, "share of full logits": peak / full}
    return {"value": tokens / times.total, "exact": found <= limit, "runs": times.runs, "more": more}


def _gradients(logprobs: Tensor, hidden: Tensor, weight: Tensor) -> list[Tensor]:
    return [logprobs.detach(), *torch.autograd.grad(logprobs.sum(), (hidden, weight))]
