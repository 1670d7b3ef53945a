"""Copies between device and host, pinned and not, and the learner's weights in the buckets in which they are sent."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any

import torch

from agent_rft.trainer.learner.checkpoint_weights import CheckpointWeights
from agent_rft.trainer.learner.host_buffer import HostBuffer, lock_pages_for_cuda
from agent_rft.trainer.learner.weight_buckets import MAX_BUCKET_BYTES, num_bytes
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.shapes import QWEN3, TINY
from benchmarks.gpu.step import Settings, build_policy

SIZES = {"16 MiB": 16 << 20, "bucket": MAX_BUCKET_BYTES, "1 GiB": 1 << 30}
AIM, ANCHOR = "<= 0.04 s/GB", "NeMo-RL, whole sync: 0.03 to 0.04"


def figures(machine: Machine) -> list[Figure]:
    """Each direction by size, pinned or not; then all weights of a model."""
    return [
        *(
            Figure(
                f"{way}, {size}, {'pinned' if pinned else 'pageable'}",
                "s/GB",
                functools.partial(_copy, machine, num_bytes, way, pinned),
                10,
            )
            for way in ("device to host", "host to device")
            for size, num_bytes in SIZES.items()
            for pinned in (True, False)
        ),
        *(
            Figure(
                f"weights of 1.7B leave in buckets, {'pinned' if pinned else 'pageable'}",
                "s/GB",
                functools.partial(_leave, machine, pinned),
                20,
                AIM,
                ANCHOR,
            )
            for pinned in (True, False)
        ),
    ]


def _copy(machine: Machine, num_bytes: int, way: str, pinned: bool) -> dict[str, Any]:
    size = 4096 if machine.tiny else num_bytes
    device = torch.randint(256, (size,), dtype=torch.uint8, device=machine.device)
    host = torch.randint(256, (size,), dtype=torch.uint8)
    if pinned and machine.device.type == "cuda":
        host = host.pin_memory()
    source, target = (device, host) if way == "device to host" else (host, device)
    times = machine.times(lambda: target.copy_(source, non_blocking=pinned))
    equal = bool((target.cpu() == source.cpu()).all())
    return {"value": times.total / size * 1e9, "runs": times.runs, "exact": equal, "more": {"exact": equal}}


def _leave(machine: Machine, pinned: bool) -> dict[str, Any]:
    """Copy the weights as rank 0 does, which page-locks the memory of a bucket on a GPU."""
    policy = build_policy(machine, TINY if machine.tiny else QWEN3["1.7B"], Settings())
    weights = CheckpointWeights(policy.model, machine.dtype, lambda _: nullcontext())
    parts = weights.split(MAX_BUCKET_BYTES)
    memory = HostBuffer(lock_pages_for_cuda if pinned and machine.device.type == "cuda" else None)
    total = sum(num_bytes(weights.describe(part)) for part in parts)

    def send() -> None:
        for part in parts:
            weights.copy_bucket(part, memory)

    times = machine.times(send, warmups=1)
    more = {"buckets": len(parts), "GB": total / 1e9}
    return {"value": times.total / total * 1e9, "runs": times.runs, "more": more}
