"""Measures the learner on one GPU, with torch and transformers alone.

    python3 -m benchmarks.gpu [--out build/gpu] [--part correctness variants] [--seconds 540]

Each figure is a line of OUT/results.jsonl. Start it again to continue where it stopped, was killed or ran out of time;
with --again it also measures again what failed. With --tiny it runs on a CPU at shapes that take no time, for typos.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu.supervisor import Benchmark

BENCHMARK = Benchmark(
    "benchmarks.gpu", Path("build/gpu"), ("machine", "correctness", "variants", "learner", "copies"), seconds=540.0
)


def main() -> int:
    return BENCHMARK.supervise(BENCHMARK.parser(__doc__).parse_args(), {})


if __name__ == "__main__":
    raise SystemExit(main())
