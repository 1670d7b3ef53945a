"""Runs benchmarks, each in a process of its own: a few, all, or all at their smallest size.

    python -m benchmarks.run             # `make bench`: the quick ones, more than 12 minutes on two cores
    python -m benchmarks.run --full      # `make bench-full`: all figures of RESULTS.md, in its order; hours
    python -m benchmarks.run --smallest  # whether all of them work; the figures mean nothing

Each prints one JSON line per figure. RESULTS.md has the latest figures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
SMOLLM2 = "build/smollm2-135m-instruct"
"""`make nightly` and `make bench-full` download it; see the Makefile."""

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
TEN_ROWS = ["--training-file", "data/train_10.jsonl", "--set", "hyperparameters.n_epochs=24"]
FULL: list[list[str]] = [
    ["ledger_seeds"],
    ["ledger_seeds", "--seeds", "1", "2", *TEN_ROWS],
    ["lora_gain"],
    ["lora_orders", SMOLLM2, "--trained", "adapter"],
    ["router_replay"],
    ["router_replay", "--layers", "4", "--experts", "16", "--chosen", "4"],
    ["readiness"],
    ["ledger_auto"],
    ["auto_rate", SMOLLM2],
    ["stress"],
    ["learner"],
    ["learner", "--cores", "2"],
    ["learner", "--cores", "2", "--runs", "2", "--model", SMOLLM2],
    ["loss_memory"],
    ["checkpoint_pause", "--runs", "7"],
    ["write_ahead"],
    ["records", "--rollouts", "10000"],
    ["records"],
    ["records", "--rollouts", "1000000"],
    ["weight_sync", "--rank", "32"],
    ["rollout_goodput", "--runs", "7", "--episodes", "768"],
    ["rollout_goodput", "--layers", "6"],
    ["rollout_goodput", "--layers", "16"],
    ["turn_cpu"],
    ["cli"],
    ["async_gain", "--staleness", "1", "2", "4", "--steps", "12"],
    ["async_gain", "--staleness", "1", "2", "--median-s", "0.2", "--p99-s", "2"],
    ["channel"],
    ["group_affinity"],
    ["group_affinity", "--prompt-tokens", "0"],
    ["shared_engine", "--times", "2"],
    ["shared_engine", "--times", "2", "--learn-s", "1"],
    ["dispatcher", "--no-ray", "--in-flight", "500", "--runs", "7"],
    ["dispatcher", "--in-flight", "500", "--per-s", "500", "--runs", "5"],
    ["dispatcher"],
    ["grader_pool"],
    ["python_grader"],
    ["health", "--runs", "3"],
    ["api"],
    ["metrics"],
    ["metrics", "--control"],
    ["under_fire"],
]
SMALLEST: dict[str, list[str]] = {
    "api": ["--clients", "1", "--seconds", "0.2"],
    "async_gain": ["--staleness", "1", "--steps", "4"],
    "auto_rate": [SMOLLM2, "--steps", "2", "--test-rows", "4"],
    "channel": ["--runs", "1", "--seconds", "0.5"],
    "checkpoint_pause": ["--layers", "2", "--runs", "1"],
    "cli": ["--runs", "1"],
    "dispatcher": ["--runs", "1", "--in-flight", "8", "--calls", "64"],
    "grader_pool": ["--runs", "1", "--count", "200", "--at-once", "4"],
    "group_affinity": ["--runs", "1", "--steps", "1", "--groups", "2", "--size", "2", "--prompt-tokens", "100"],
    "health": [],
    "learner": ["--runs", "1"],
    "ledger_auto": ["--seeds", "7", "--rows", "32", "--test-rows", "16"],
    "ledger_seeds": ["--seeds", "1", "--rows", "16", "--test-rows", "16"],
    "lora_gain": ["--seeds", "1", "--rank", "4", "--rows", "16", "--test-rows", "16"],
    "lora_orders": [SMOLLM2, "--seeds", "1", "--rank", "4", "--trained", "adapter", "--rows", "8"],
    "loss_memory": ["--tokens", "1024", "--vocabulary", "50000", "--hidden", "64"],
    "metrics": ["--runs", "1", "--episodes", "64", "--admitted", "16"],
    "python_grader": ["--runs", "1", "--grades", "8"],
    "readiness": ["--tasks", "too hard"],
    "records": ["--runs", "1", "--rollouts", "1024", "--per-step", "64", "--tokens", "30"],
    "rollout_goodput": ["--runs", "1", "--episodes", "96", "--admitted", "12", "--slots", "4", "--median-s", "0"],
    "router_replay": ["--layers", "2", "--experts", "4", "--chosen", "2"],
    "shared_engine": ["--jobs", "2", "--learn-s", "0.1", "--steps", "1", "--times", "1"],
    "stress": ["--seeds", "7", "--limits", "0.2", "--epochs", "1", "--rows", "16", "--test-rows", "16"],
    "turn_cpu": ["--runs", "1", "--episodes", "16"],
    "under_fire": ["--seeds", "1", "--steps", "2", "--test-rows", "16"],
    "weight_sync": ["--layers", "1", "--runs", "1", "--rank", "4"],
    "write_ahead": ["--runs", "1", "--groups", "2", "--tokens", "30"],
}
"""Benchmark -> the arguments that make it as short as it can be."""
LEFT_OUT = {
    "gpu": "needs a GPU; tests/contracts/test_gpu_imports.py runs its trial on a CPU",
    "gpu_rank": "needs a GPU; tests/contracts/test_gpu_imports.py runs its trial on a CPU",
    "gpu_cluster": "needs GPUs; tests/e2e/test_gpu_cluster.py runs its trial on a CPU",
}
"""Benchmark -> why it has no smallest size here."""


def find_benchmarks() -> set[str]:
    """Return the modules of this folder that can be run, except this one."""
    modules = {file.stem for file in FOLDER.glob("*.py") if 'if __name__ == "__main__":' in file.read_text()}
    packages = {file.parent.name for file in FOLDER.glob("*/__main__.py")}
    return (modules | packages) - {Path(__file__).stem}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--full", dest="commands", action="store_const", const=FULL, default=QUICK)
    smallest = [[name, *arguments] for name, arguments in SMALLEST.items()]
    chosen.add_argument("--smallest", dest="commands", action="store_const", const=smallest)
    failed = []
    for name, *arguments in parser.parse_args().commands:
        print(f"\n== {name} {' '.join(arguments)} (load {os.getloadavg()[0]:.1f})", flush=True)
        started = time.monotonic()
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments]).returncode != 0:
            failed.append(name)
        print(f"== {name}: {time.monotonic() - started:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
