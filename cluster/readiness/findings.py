"""All findings of one look at a job before training, and how they are put together."""

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
"""The format of the JSON; raise it when a key changes its meaning."""
SHOWN_GROUPS = 20
"""Groups of similar rows in the short form; the reasons say how many there are."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """The verdict and everything it was made of. `rows` go from the lowest mean reward to the highest."""

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
        """Everything as plain values, NaN as None. Each reason has its remedy. Without rows it is short."""
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
    """The findings.

    Args:
        job: The job.
        plan: Its numbers.
        tasks: The rows that were drawn.
        groups: One group of `samples` rollouts for each of them.
        others: Rows of the job's other files by the job's field.
        samples: Rollouts of each row.
        again: Trace id -> the same answer's second grade; None: it could not be graded again.
        file: The job's field of the rows.
        target_s: Wanted model and tool time of a rollout.
        rollout_s: Seconds per rollout, with as many at a time as the engines hold.
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
    """The value with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
