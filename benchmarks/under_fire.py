"""The cost of faulty endpoints: the ledger's job with failing tools and grader against a run without faults.

    python -m benchmarks.under_fire [--seeds 1 2 3] [--steps 15] [--test-rows N]

Both runs go through the same proxy, which takes its share of the two cores, to servers with a log-normal latency
(median 0.2 s, p99 2 s). Faults of every tool and the grader follow a seeded plan: 10 % of the calls fail (half of them
with 500, a quarter without a response, a quarter in the middle of the body), 5 % hang, and for two of every thirty
seconds all responses are 429. Both jobs have the settings that suit such servers: hedged tools and grader, short
deadlines, and groups that continue without their stragglers. Reported are training steps per hour and the final grade
on the test rows.
"""

from __future__ import annotations

import argparse
import os
from statistics import mean, stdev
from typing import Any

from benchmarks.common import Figure, report
from benchmarks.ledger_seeds import job_of, run
from cluster.records.run_folder import RunFolder
from tests.chaos.ledger import faulty_ledger
from tests.chaos.plan import Burst, Faults, Plan

ENDPOINTS = ("tools/list", "tools/search", "tools/cat", "grade")
BURSTS = tuple(Burst("429", from_s, 2.0, retry_after_s=1.0) for from_s in range(40, 1200, 30))
FAULTS = Faults(shares={"500": 0.05, "drop": 0.025, "reset": 0.025, "hang": 0.05}, bursts=BURSTS)
LATENCY = ("--latency-median-s", "0.2", "--latency-p99-s", "2")
HEDGED = {"idempotent": True, "hedge_after_s": 0.7, "attempt_timeout_s": 3.0, "timeout_s": 10.0}
"""For a tool that usually responds in 0.2 s, in 90 % of the cases within 0.7 s and almost always within 2 s. A second
request is worth its cost after 0.7 s, and after 3 s the first one is lost."""
SETTINGS: dict[str, Any] = {
    "limits.max_rollout_retries": 2,
    "limits.straggler_wait_s": 1.0,
    "grader.timeout_s": 10.0,
    "grader.hedge_after_s": 0.7,
    "grader.attempt_timeout_s": 3.0,
}


def steps_an_hour(folder: RunFolder) -> float:
    """Steps per hour over all steps but the first, without the time for validation and checkpoints."""
    excluded = ("time_eval_s", "time_checkpoint_s")
    return 3600 / mean(m["time_step_s"] - sum(m.get(name, 0.0) for name in excluded) for m in folder.metrics()[1:])


def one(seed: int, steps: int, test_rows: int | None, faulty: bool) -> tuple[float, float, dict[str, float]]:
    """Return steps per hour, the grade after training, and the rollout counts of the last step."""
    tools = job_of(seed, "data/train.jsonl", {})["method"]["reinforcement"]["tools"]
    settings = SETTINGS | {"tools": [tool | HEDGED for tool in tools]}
    plan = Plan(seed=seed, endpoints=dict.fromkeys(ENDPOINTS, FAULTS) if faulty else {})
    with faulty_ledger(plan, *LATENCY) as ledger:
        environment, rows = ledger.environment, steps * 16
        folder, _ = run(seed, "data/train.jsonl", settings, environment=environment, rows=rows, test_rows=test_rows)
    last = folder.metrics()[-1]
    account = {name: value for name, value in last.items() if name.startswith("account/")}
    return steps_an_hour(folder), folder.evaluations()["test-after"].grade, account


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=15, help="training steps, at least 2: the first is not counted")
    parser.add_argument("--test-rows", type=int, help="test rows; default: the full file")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error(f"--steps {options.steps}: the first step is not counted. Use at least 2.")
    speeds, grades = [], []
    for seed in options.seeds:
        quiet_speed, quiet_grade, _ = one(seed, options.steps, options.test_rows, faulty=False)
        speed, grade, account = one(seed, options.steps, options.test_rows, faulty=True)
        speeds.append((speed, quiet_speed))
        grades.append((grade, quiet_grade))
        print(
            f"seed {seed}: with faults {speed:.0f} steps/h, grade {grade:.3f} ({account}); "
            f"without {quiet_speed:.0f}, {quiet_grade:.3f}; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    differences = [ours - theirs for ours, theirs in grades]
    noise = f" +- {stdev(differences):.3f} over seeds" if len(differences) > 1 else ""
    print(f"difference of grades {mean(differences):+.3f}{noise}")
    report(
        [
            Figure("under fire: training steps", "steps/h", tuple(speeds)),
            Figure("under fire: grade after", "", tuple(grades)),
        ]
    )


if __name__ == "__main__":
    main()
