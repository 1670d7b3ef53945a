"""Gain of generating while learning: steps per hour with bounded staleness against strictly on-policy, in real runs.

    python -m benchmarks.async_gain [--staleness 1 2] [--steps 10] [--median-s 0.2 --p99-s 2]
                                    [--layers 28 --hidden 1024 --intermediate 3072 --heads 16]

Runs the ledger's job with a learning rate of almost 0, so that every step does the same work, with an engine and a
learner rank on one core each, or on one GPU each if the machine has two. The possible gain is
(T_gen + T_learn) / max(T_gen, T_learn), both times from the on-policy run. Times are means without the first two steps,
since with staleness long and short steps alternate.
`--median-s` and `--p99-s` slow the tools down. The sizes enlarge the base model by parts that change nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.common import impossible, print_figure
from benchmarks.enlarged import OWN_SIZE, add_size_options, enlarged, size_of
from benchmarks.ledger_seeds import LEDGER, run
from benchmarks.local import ONE_GPU, dtype_here, gpus_here

WARM_UP_STEPS = 2
MIN_STEPS = WARM_UP_STEPS + 2
"""The warm-up, at least one step that is measured, and the last one, which writes the checkpoint."""
NO_FILES = {"validation_file": None, "test_file": None}


def step_times(model: str, staleness: int, steps: int, *server_options: str) -> tuple[float, float, float]:
    """Mean seconds per step: the whole step, waiting for rollouts, and learning and publishing.

    A step whose update was skipped publishes nothing, so its `time_sync_s` is missing and counts as 0.
    """
    settings: dict[str, Any] = {
        "algorithm.max_staleness": staleness,
        "algorithm.learning_rate": 1e-9,
        "algorithm.updates_per_batch": 1,
        "hyperparameters.eval_interval": 10_000,
    }
    folder, _ = run(
        7, "data/train.jsonl", settings, *server_options, files=NO_FILES | {"model": model}, rows=steps * 16
    )
    metrics = folder.metrics()[WARM_UP_STEPS:-1]
    shutil.rmtree(folder.path.parent)  # checkpoints of a large model would soon fill the disk
    learning = [m["time_learn_s"] + m.get("time_sync_s", 0.0) for m in metrics]
    return fmean(m["time_step_s"] for m in metrics), fmean(m["time_wait_s"] for m in metrics), fmean(learning)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=10, help=f"steps per run, at least {MIN_STEPS}")
    parser.add_argument("--median-s", type=float)
    parser.add_argument("--p99-s", type=float)
    add_size_options(parser)
    return parser


def main() -> None:
    parser = arguments()
    options = parser.parse_args()
    if options.steps < MIN_STEPS:
        parser.error(f"--steps {options.steps}: nothing is left to measure. Use at least {MIN_STEPS}.")
    if gpus_here() == 1:
        impossible(ONE_GPU)
        return
    size = size_of(options)
    with tempfile.TemporaryDirectory() as folder:
        base = LEDGER / "base"
        measure(options, str(base) if size == OWN_SIZE else enlarged(base, size, Path(folder), dtype_here()))


def measure(options: argparse.Namespace, model: str) -> None:
    slow: list[str] = []
    if options.median_s:
        slow = ["--latency-median-s", str(options.median_s), "--latency-p99-s", str(options.p99_s)]
    on_policy, generating, learning = step_times(model, 0, options.steps, *slow)
    possible = (generating + learning) / max(generating, learning)
    lines = [f"staleness 0: {on_policy:.2f} s per step ({generating:.2f} generating, {learning:.2f} learning)"]
    for staleness in options.staleness:
        step, _, _ = step_times(model, staleness, options.steps, *slow)
        gain = on_policy / step
        name = f"async gain, staleness {staleness}" + (", slow tools" if slow else "")
        ours, baseline = 3600 / step, 3600 / on_policy
        print_figure(name, ours, "steps/h", baseline=baseline, ratio=gain, runs=[[ours, baseline]])
        lines.append(
            f"staleness {staleness}: {step:.2f} s per step, gain {gain:.2f}, {gain / possible:.2f} of the possible"
        )
    print("\n".join([*lines, f"possible gain {possible:.2f}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"]))


if __name__ == "__main__":
    main()
