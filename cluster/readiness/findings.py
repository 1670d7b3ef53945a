"""Result of a readiness check, and the function that computes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agent_rft.cluster.readiness.advice import Estimate, Setting, estimate_of, settings_for
from agent_rft.cluster.readiness.behaviour import Behaviour, behaviour_of
from agent_rft.cluster.readiness.data_checks import DataFinding, data_finding
from agent_rft.cluster.readiness.draws import (
    SIZES,
    GroupSignal,
    PassAt,
    Row,
    Shares,
    group_signal,
    pass_at,
    rows_of,
    shares_of,
)
from agent_rft.cluster.readiness.grader import GraderFinding, grader_finding
from agent_rft.cluster.readiness.verdict import TRAINED, Evidence, Found, verdict_of
from agent_rft.metrics.intervals import Interval, bootstrap_mean
from agent_rft.problems.readiness import REASONS, Verdict
from agent_rft.spec.job import JobSpec
from agent_rft.spec.plan import Plan
from agent_rft.types import Group, Task

FORMAT = 1
"""Version of the JSON format. Raise it when the meaning of a key changes."""
SHOWN_GROUPS = 20
"""Maximum groups of similar rows in the JSON without rows; the reasons state how many there are."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Verdict of a readiness check and all its measurements. `rows` are in ascending order of mean reward."""

    verdict: Verdict
    reasons: tuple[Found, ...]
    settings: tuple[Setting, ...]
    estimate: Estimate
    samples: int
    rollouts: int
    grade: Interval
    reward: Interval
    shares: Shares
    pass_at: tuple[PassAt, ...]
    group_signal: tuple[GroupSignal, ...]
    grader: GraderFinding
    behaviour: Behaviour | None
    data: DataFinding
    target_s: float | None
    rows: tuple[Row, ...]

    @property
    def codes(self) -> list[str]:
        return [found.reason.value for found in self.reasons]

    def as_json(self, *, with_rows: bool = True) -> dict[str, Any]:
        """Return all fields as JSON values, with NaN as None and a fix for each reason; shortened without rows."""
        values: dict[str, Any] = _finite({"format": FORMAT} | asdict(self))
        values["reasons"] = [
            {
                "code": found.reason.value,
                "decides": REASONS[found.reason].verdict is not None,
                "message": found.words,
                "remedy": REASONS[found.reason].remedy,
            }
            for found in self.reasons
        ]
        if not with_rows:
            del values["rows"]
            for name in ("contradictory", "duplicates", "near_duplicates"):
                values["data"][name] = values["data"][name][:SHOWN_GROUPS]
        return values


def readiness_of(
    job: JobSpec,
    plan: Plan,
    tasks: Sequence[Task],
    groups: Sequence[Group],
    others: Mapping[str, Sequence[Task]],
    *,
    samples: int,
    again: Mapping[str, float | None],
    file: str = TRAINED,
    target_s: float | None = None,
    rollout_s: float | None = None,
) -> Readiness:
    """Return the result of a readiness check.

    Args:
        job: The job.
        plan: The job's numbers of steps and rollouts.
        tasks: The sampled rows.
        groups: One group of `samples` rollouts for each sampled row.
        others: Rows of the job's other files, by the job's field.
        samples: Rollouts per row.
        again: Second grade of the same answer by trace id; None if the second grading failed.
        file: Field of the job that names the file of the rows.
        target_s: Target for the model and tool time of a rollout; None if there is no target.
        rollout_s: Elapsed seconds divided by the number of rollouts, with the engines fully loaded.
    """
    rows = rows_of(groups, job.reinforcement.grader.pass_threshold)
    shares, grader = shares_of(rows), grader_finding(groups, again)
    behaviour, data = behaviour_of(groups, target_s), data_finding(file, tasks, others)
    reward = job.reinforcement.reward
    penalties = any((reward.tool_call_penalty, reward.turn_penalty, reward.token_penalty, reward.time_penalty_per_s))
    passing = bootstrap_mean(row.passed / row.graded for row in rows)
    verdict, reasons = verdict_of(Evidence(rows, shares, passing, grader, behaviour, data, penalties))
    signal = group_signal(groups, {*SIZES, plan.group_size})
    return Readiness(
        verdict=verdict,
        reasons=reasons,
        settings=() if behaviour is None else tuple(settings_for(job, plan, signal, behaviour)),
        estimate=estimate_of(plan, signal, rollout_s),
        samples=samples,
        rollouts=sum(len(group.rollouts) for group in groups),
        grade=bootstrap_mean(row.grade for row in rows),
        reward=bootstrap_mean((row.mean for row in rows), bounds=None),
        shares=shares,
        pass_at=pass_at(rows, samples),
        group_signal=signal,
        grader=grader,
        behaviour=behaviour,
        data=data,
        target_s=target_s,
        rows=tuple(rows),
    )


def _finite(value: Any) -> Any:
    """Return the value with None in place of numbers that JSON does not support."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
