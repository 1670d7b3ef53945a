"""LoRA against training of all weights on the ledger: grades on the test rows, with the same seeds.

    python -m benchmarks.lora_gain [--seeds 1 2 3 4 5] [--rank 32] [--rows N] [--test-rows N]

The rate of LoRA is ten times that of the example's job, as `auto` has it. A pair has the same rows in the same order;
the interval is Student's for the mean of the differences.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from math import sqrt
from statistics import mean, stdev

from agent_rft.spec.step_plan import LORA_FACTOR
from benchmarks.common import print_figure
from benchmarks.ledger_seeds import Learned, add_row_options, job_of, learn, print_learned

QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Student's quantile of 0.975 by degrees of freedom."""
TRAINING_FILE = "data/train.jsonl"


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the mean of two to ten differences."""
    half = QUANTILES[len(differences) - 1] * stdev(differences) / sqrt(len(differences))
    return mean(differences) - half, mean(differences) + half


def shown(name: str, result: Learned) -> str:
    return (
        f"| {result.seed} | {name} | {result.grade_before:.3f} | {result.grade_after:.3f} | {result.calls_before:.2f} "
        f"| {result.calls_after:.2f} | {result.train_s:.0f} | {result.whole_s:.0f} | {os.getloadavg()[1]:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--rank", type=int, default=32)
    add_row_options(parser)
    options = parser.parse_args()
    job = job_of(0, TRAINING_FILE, {})
    rate = job["method"]["reinforcement"]["algorithm"]["learning_rate"]
    lora = {"algorithm.lora.rank": options.rank, "algorithm.learning_rate": rate * LORA_FACTOR}
    print("| seed | trained | grade before | after | calls before | after | training s | total s | load |")
    print("|---|---|---|---|---|---|---|---|---|")
    pairs = []
    for seed in options.seeds:
        full, adapter = (
            learn(seed, TRAINING_FILE, settings, options.rows, options.test_rows) for settings in ({}, lora)
        )
        print(f"{shown('all weights', full)}\n{shown('adapter', adapter)}", flush=True)
        pairs.append((full, adapter))
    for full, adapter in pairs:
        print_learned(f"all weights, seed {full.seed}", full)
        print_learned(f"adapter, seed {adapter.seed}", adapter)
    differences = [adapter.grade_after - full.grade_after for full, adapter in pairs]
    print_figure("LoRA against all weights: grade", mean(differences), "", differences=differences)
    if len(differences) > 1:
        low, high = interval(differences)
        print(f"LoRA against all weights: {mean(differences):+.3f} [{low:+.3f}, {high:+.3f}]")


if __name__ == "__main__":
    main()
