"""The device that is measured: its name, times and memory."""

from __future__ import annotations

import gc
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import transformers

from agent_rft.cluster.planning.memory_estimates import GIB
from benchmarks.gpu.figures import Figure, Results

PEAK_FLOPS = 989e12
"""Dense bfloat16 of an H100 or H200 SXM, by the data sheet. All MFU figures refer to it."""
BUDGET_S = 12.0
"""A figure is repeated for about this long, at least `MIN_RUNS` times unless one takes as long as
that, and at most `MAX_RUNS` times."""
MIN_RUNS, MAX_RUNS = 3, 15


@dataclass(frozen=True, slots=True)
class Machine:
    """Where figures are measured; `tiny` is the trial on a CPU, at shapes that take no time."""

    device: torch.device
    dtype: torch.dtype
    tiny: bool
    results: Results

    @property
    def memory_bytes(self) -> int:
        """The memory of the GPU; on a CPU that of an H100."""
        if self.device.type == "cpu":
            return 80 * GIB
        return int(torch.cuda.get_device_properties(self.device).total_memory)

    def describe(self) -> dict[str, Any]:
        """The fields of each line that say where it was measured."""
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        if self.device.type == "cpu":
            return {"device": "cpu", **versions}
        return {"device": torch.cuda.get_device_name(self.device), "cuda": torch.version.cuda, **versions}

    def allocated_bytes(self) -> int:
        """The bytes of all tensors on the device; 0 on a CPU."""
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def forget(self) -> None:
        """Free what the last figure used, and start counting peak memory."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_gib(self) -> float:
        """Peak memory of tensors since `forget`; 0 on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) / GIB if self.device.type == "cuda" else 0.0

    def clocks(self) -> str:
        """Clocks, temperature and power at this moment."""
        if self.device.type == "cpu":
            return ""
        query = "--query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw"
        try:
            done = subprocess.run(
                ["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip()

    def times(self, *works: Callable[[], object], warmups: int = 2, runs: int = MAX_RUNS) -> Times:
        """Seconds of each of `works`, run in turn; the device is idle between them."""
        began = time.perf_counter()
        for _ in range(min(warmups, 1) if self.tiny else warmups):
            for work in works:
                self._seconds(work)
            if time.perf_counter() - began > BUDGET_S:
                break
        rounds: list[list[float]] = []
        began = time.perf_counter()
        most, least = (1, 1) if self.tiny else (runs, MIN_RUNS)
        while len(rounds) < most and (took := time.perf_counter() - began) < 2 * BUDGET_S:
            if len(rounds) >= least and took > BUDGET_S:
                break
            rounds.append([self._seconds(work) for work in works])
        return Times(rounds)

    def _seconds(self, work: Callable[[], object]) -> float:
        started = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of several works in several rounds."""

    rounds: list[list[float]]

    @property
    def total(self) -> float:
        """The median of a round."""
        return median(sum(one) for one in self.rounds)

    def of(self, index: int) -> float:
        return median(one[index] for one in self.rounds)

    @property
    def runs(self) -> list[float]:
        return [round(sum(one), 6) for one in self.rounds]


def error(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    """||ours - theirs|| / ||theirs|| over all tensors; infinite if anything is not a number."""
    difference = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(ours, theirs, strict=True))
    norm = sum(float(b.double().square().sum()) for b in theirs)
    result = (difference / norm) ** 0.5
    return result if result == result else float("inf")


def figures(machine: Machine) -> list[Figure]:
    """What the device can do at best: the ceilings that other figures are compared with."""
    size = 256 if machine.tiny else 8192

    def product() -> dict[str, Any]:
        a, b = (torch.randn(size, size, device=machine.device, dtype=machine.dtype) for _ in range(2))
        times = machine.times(lambda: [a @ b for _ in range(10)])
        return {"value": 20 * size**3 / times.total / 1e12, "baseline": PEAK_FLOPS / 1e12, "runs": times.runs}

    def copy() -> dict[str, Any]:
        source = torch.randn(size * size * (1 if machine.tiny else 16), device=machine.device)
        target = torch.empty_like(source)
        times = machine.times(lambda: [target.copy_(source) for _ in range(10)])
        return {"value": 20 * source.nbytes / times.total / 1e9, "runs": times.runs}

    return [
        Figure(f"matrix product of {size}, {machine.dtype}", "TFLOP/s", product, 5),
        Figure("copy on the device, read and written", "GB/s", copy, 5),
    ]
