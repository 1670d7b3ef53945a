"""The cost of faulty endpoints: the ledger's job with failing tools and grader against a run without faults.

    python -m benchmarks.under_fire [--seeds 1 2 3] [--steps 15] [--test-rows N] [--hedging on|off|both]

Both runs go through the same proxy, which takes its share of the two cores, to servers with a log-normal latency
(median 0.2 s, p99 2 s). Faults of every tool and the grader follow a seeded plan: 10 % of the calls fail (half of them
with 500, a quarter without a response, a quarter in the middle of the body), 5 % hang, and for two of every thirty
seconds all responses are 429. Both jobs have the settings that suit such servers: hedged tools and grader, short
deadlines, and groups that continue without their stragglers. Reported are training steps per hour and the final grade
on the test rows.

`--hedging off` runs the same jobs without hedging. `--hedging both` measures each seed with and without hedging, and
reports the share of the steps that hedging keeps.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any

from agent_rft.cluster.records.run_folder import RunFolder
from benchmarks.common import Figure, report
from benchmarks.ledger_seeds import job_of, run
from tests.chaos.ledger import faulty_ledger
from tests.chaos.plan import Burst, Faults, Plan

ENDPOINTS = ("tools/list", "tools/search", "tools/cat", "grade")
BURSTS = tuple(Burst("429", from_s, 2.0, retry_after_s=1.0) for from_s in range(40, 1200, 30))
FAULTS = Faults(shares={"500": 0.05, "drop": 0.025, "reset": 0.025, "hang": 0.05}, bursts=BURSTS)
LATENCY = ("--latency-median-s", "0.2", "--latency-p99-s", "2")
DEADLINES = {"attempt_timeout_s": 3.0, "timeout_s": 10.0}
"""For a tool that usually responds in 0.2 s and almost always within 2 s: after 3 s a request is lost."""
HEDGE_AFTER_S = 0.7
"""In 90 % of the cases the tool has responded by then, so a second request is worth its cost."""
SETTINGS: dict[str, Any] = {
    "limits.max_rollout_retries": 2,
    "limits.straggler_wait_s": 1.0,
    **{f"grader.{name}": value for name, value in DEADLINES.items()},
}


@dataclass(frozen=True, slots=True)
class Result:
    """Steps per hour and grade after training of one job, and the rollout counts of its last step."""

    steps_an_hour: float
    grade: float
    account: dict[str, float]


def steps_an_hour(folder: RunFolder) -> float:
    """Steps per hour over all steps but the first, without the time for validation and checkpoints."""
    excluded = ("time_eval_s", "time_checkpoint_s")
    return 3600 / mean(m["time_step_s"] - sum(m.get(name, 0.0) for name in excluded) for m in folder.metrics()[1:])


def settings_of(tools: list[dict[str, Any]], *, hedged: bool) -> dict[str, Any]:
    """Settings of the job, whose `tools` and grader are hedged or not."""
    tools = [tool | DEADLINES for tool in tools]
    if not hedged:
        return SETTINGS | {"tools": tools}
    tools = [tool | {"idempotent": True, "hedge_after_s": HEDGE_AFTER_S} for tool in tools]
    return SETTINGS | {"tools": tools, "grader.hedge_after_s": HEDGE_AFTER_S}


def one(seed: int, steps: int, test_rows: int | None, *, faulty: bool, hedged: bool) -> Result:
    """Train one job and return its result."""
    tools = job_of(seed, "data/train.jsonl", {})["method"]["reinforcement"]["tools"]
    settings = settings_of(tools, hedged=hedged)
    plan = Plan(seed=seed, endpoints=dict.fromkeys(ENDPOINTS, FAULTS) if faulty else {})
    with faulty_ledger(plan, *LATENCY) as ledger:
        environment, rows = ledger.environment, steps * 16
        folder, _ = run(seed, "data/train.jsonl", settings, environment=environment, rows=rows, test_rows=test_rows)
    last = folder.metrics()[-1]
    account = {name: value for name, value in last.items() if name.startswith("rollout_attempts/")}
    return Result(steps_an_hour(folder), folder.evaluations()["test-after"].grade, account)


def measure(seed: int, steps: int, test_rows: int | None, *, hedged: bool) -> tuple[Result, Result]:
    """Return the results with and without faults, and print them."""
    quiet = one(seed, steps, test_rows, faulty=False, hedged=hedged)
    faulty = one(seed, steps, test_rows, faulty=True, hedged=hedged)
    print(
        f"seed {seed}, hedging {'on' if hedged else 'off'}: with faults {faulty.steps_an_hour:.0f} steps/h, "
        f"grade {faulty.grade:.3f} ({faulty.account}); without {quiet.steps_an_hour:.0f}, {quiet.grade:.3f}; "
        f"kept {faulty.steps_an_hour / quiet.steps_an_hour:.3f} of the steps; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return faulty, quiet


def figures_of(results: list[tuple[Result, Result]], suffix: str) -> list[Figure]:
    """Figures of the results with and without faults, one pair for each seed."""
    speeds = tuple((faulty.steps_an_hour, quiet.steps_an_hour) for faulty, quiet in results)
    grades = tuple((faulty.grade, quiet.grade) for faulty, quiet in results)
    differences = [ours - theirs for ours, theirs in grades]
    noise = f" +- {stdev(differences):.3f} over seeds" if len(differences) > 1 else ""
    print(f"difference of grades{suffix} {mean(differences):+.3f}{noise}")
    return [
        Figure(f"under fire{suffix}: training steps", "steps/h", speeds),
        Figure(f"under fire{suffix}: grade after", "", grades),
    ]


def print_gain(hedged: Figure, plain: Figure) -> None:
    """Print how much more of the steps hedging keeps: medians over seeds, with two baselines for the other side."""
    same_baseline = median(steps / quiet for (steps, _), (_, quiet) in zip(plain.runs, hedged.runs, strict=True))
    print(f"hedging keeps {hedged.ratio - plain.ratio:+.3f} of the steps ({hedged.ratio:.3f} and {plain.ratio:.3f})")
    gain = hedged.ratio - same_baseline
    print(f"... with hedged jobs without faults as both baselines: {gain:+.3f} ({same_baseline:.3f} without hedging)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=15, help="training steps, at least 2: the first is not counted")
    parser.add_argument("--test-rows", type=int, help="test rows; default: the full file")
    parser.add_argument("--hedging", choices=("on", "off", "both"), default="on", help="hedge slow calls; default: on")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error(f"--steps {options.steps}: the first step is not counted. Use at least 2.")
    sides = [True, False] if options.hedging == "both" else [options.hedging == "on"]
    results: dict[bool, list[tuple[Result, Result]]] = {hedged: [] for hedged in sides}
    for seed in options.seeds:
        for hedged in sides:
            results[hedged].append(measure(seed, options.steps, options.test_rows, hedged=hedged))
        sides.reverse()  # a machine that becomes slower affects both sides
    figures = {hedged: figures_of(found, "" if hedged else ", no hedging") for hedged, found in results.items()}
    report([figure for found in figures.values() for figure in found])
    if options.hedging == "both":
        print_gain(figures[True][0], figures[False][0])


if __name__ == "__main__":
    main()
