"""Runs benchmarks: the quick ones with `make bench` (under ten minutes on two cores), all with `make bench-full`.

Each prints one JSON line per figure and a table with both sides of each ratio. RESULTS.md has the latest figures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

QUICK: list[list[str]] = [
    ["cli"],
    ["learner"],
    ["loss_memory"],
    ["checkpoint_pause"],
    ["write_ahead"],
    ["records", "--rollouts", "10000"],
    ["grader_pool"],
    ["python_grader"],
    ["weight_sync", "--runs", "2", "--rank", "32"],
    ["rollout_goodput", "--runs", "1"],
    ["async_gain", "--staleness", "1", "--steps", "6"],
    ["dispatcher", "--runs", "3", "--calls", "5000", "--in-flight", "500"],
    ["api"],
    ["health"],
    ["metrics", "--runs", "3", "--episodes", "256"],
]
FULL: list[list[str]] = [
    ["cli"],
    ["channel"],
    ["dispatcher", "--runs", "5"],
    ["api", "--seconds", "10"],
    ["health", "--runs", "3"],
    ["learner"],
    ["loss_memory"],
    ["checkpoint_pause"],
    ["write_ahead"],
    ["records"],
    ["records", "--rollouts", "1000000"],
    ["grader_pool"],
    ["python_grader"],
    ["weight_sync", "--rank", "32"],
    ["rollout_goodput"],
    ["rollout_goodput", "--layers", "16"],
    ["metrics"],
    ["async_gain", "--staleness", "1", "2", "4"],
    ["async_gain", "--staleness", "1", "2", "--median-s", "0.2", "--p99-s", "2"],
    ["under_fire"],
    ["ledger_seeds"],
    [
        "ledger_seeds",
        "--seeds",
        "1",
        "2",
        "--training-file",
        "data/train_10.jsonl",
        "--set",
        "hyperparameters.n_epochs=24",
    ],
    ["readiness"],
    ["stress"],
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    failed = []
    for name, *arguments in FULL if parser.parse_args().full else QUICK:
        print(f"\n== {name} {' '.join(arguments)} (load {os.getloadavg()[0]:.1f})", flush=True)
        started = time.monotonic()
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments]).returncode != 0:
            failed.append(name)
        print(f"== {name}: {time.monotonic() - started:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
