"""The ledger with old rollouts and a rate that is far too high, with `max_divergence` and without it.

    python -m benchmarks.stress [--seeds 7 8 9] [--staleness 8] [--rate 1.2e-3] [--limits off 0.2]
                                [--rows N] [--test-rows N] [--epochs 3]

Ten times the automatic rate, rollouts up to eight versions old, two updates per batch, 45 steps. Reported are the best
grade of a step, the one before and after the largest fall, the mean of the last ten, and the grade on the test rows
before and after. Aim: with the limit each seed ends far above where it began; without it, it does not.
"""

from __future__ import annotations

import argparse
import os
from itertools import accumulate
from statistics import fmean
from typing import Any

from agent_rft.cluster.records.run_folder import RunFolder
from benchmarks.common import print_figure
from benchmarks.ledger_seeds import add_row_options, run

HEADER = (
    "| seed | max_divergence | best step | largest fall | last ten | test before | after | largest entropy "
    "| oldest rollout | diverged tokens | s | load |"
)


def row(folder: RunFolder, seed: int, limit: float | None, whole_s: float) -> str:
    """A line of the table. A job that was halted has no grade after."""
    steps, tests = folder.metrics(), folder.evaluations()
    grades = [step["train_mean_grade"] for step in steps]
    tops = list(accumulate(grades, max))
    falls = [top - grade for top, grade in zip(tops, grades, strict=True)]
    low = falls.index(max(falls))
    after = f"{tests['test-after'].grade:.3f}" if "test-after" in tests else f"halted at step {len(steps)}"
    shares = [step.get("diverged_share", 0.0) for step in steps]
    cells = [
        str(seed),
        "off" if limit is None else f"{limit:g}",
        f"{tops[-1]:.3f}",
        f"{tops[low]:.3f} to {grades[low]:.3f} (step {low + 1})",
        f"{fmean(grades[-10:]):.3f}",
        f"{tests['test-before'].grade:.3f}",
        after,
        f"{max(step['entropy'] for step in steps):.2f}",
        f"{max(step['staleness_max'] for step in steps):.0f}",
        f"{fmean(shares):.1%}, at most {max(shares):.1%}",
        f"{whole_s:.0f}",
        f"{os.getloadavg()[0]:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--staleness", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1.2e-3)
    parser.add_argument("--limits", nargs="+", default=["off", "0.2"], help="values of max_divergence")
    parser.add_argument("--epochs", type=int, default=3)
    add_row_options(parser)
    options = parser.parse_args()
    runs = []
    print(f"{HEADER}\n|{'---|' * (HEADER.count('|') - 1)}", flush=True)
    for seed in options.seeds:
        for limit in (None if text == "off" else float(text) for text in options.limits):
            settings: dict[str, Any] = {
                "hyperparameters.n_epochs": options.epochs,
                "limits.max_completion_tokens": 200,  # what a broken model samples is long
                "algorithm.max_staleness": options.staleness,
                "algorithm.updates_per_batch": 2,
                "algorithm.learning_rate": options.rate,
                "algorithm.max_divergence": limit,
            }
            folder, whole_s = run(
                seed, "data/train.jsonl", settings, rows=options.rows, test_rows=options.test_rows, may_fail=True
            )
            print(row(folder, seed, limit, whole_s), flush=True)
            runs.append((f"max_divergence {limit or 'off'}, seed {seed}", folder))
    for name, folder in runs:
        steps = [step["train_mean_grade"] for step in folder.metrics()]
        grades = {evaluated: evaluation.grade for evaluated, evaluation in folder.evaluations().items()}
        print_figure(f"stress, {name}: best step", max(steps), "", last_ten=fmean(steps[-10:]), evaluations=grades)


if __name__ == "__main__":
    main()
