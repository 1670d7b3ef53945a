"""Result of a readiness check, and the function that computes it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agent_rft.cluster.readiness.data_checks import DataFinding, check_rows
from agent_rft.cluster.readiness.grader_reliability import GraderFinding, measure_grader
from agent_rft.cluster.readiness.readiness_verdict import TRAINED, Evidence, ReadinessFinding, decide_verdict
from agent_rft.cluster.readiness.recommended_settings import (
    Estimate,
    RecommendedSetting,
    estimate_training,
    recommend_settings,
)
from agent_rft.cluster.readiness.rollout_behavior import RolloutBehavior, measure_behavior
from agent_rft.cluster.readiness.row_signal import (
    SIZES,
    GroupSignal,
    PassAtK,
    RowShares,
    RowSignal,
    count_row_shares,
    estimate_group_signal,
    estimate_pass_at,
    measure_rows,
)
from agent_rft.metrics.confidence_intervals import Interval, bootstrap_interval
from agent_rft.problems.readiness_reasons import REASONS, Verdict
from agent_rft.spec.job import JobSpec
from agent_rft.spec.step_plan import StepPlan
from agent_rft.types import Group, Task

FORMAT = 1
"""Version of the JSON format. Raise it when the meaning of a key changes."""
SHOWN_GROUPS = 20
"""Maximum length of each list of similar rows in `as_json(with_rows=False)`."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Verdict of a readiness check and all its measurements. `rows` are in ascending order of mean reward."""

    verdict: Verdict
    reasons: tuple[ReadinessFinding, ...]
    settings: tuple[RecommendedSetting, ...]
    estimate: Estimate
    samples: int
    rollouts: int
    grade: Interval
    reward: Interval
    shares: RowShares
    pass_at: tuple[PassAtK, ...]
    group_signal: tuple[GroupSignal, ...]
    grader: GraderFinding
    behavior: RolloutBehavior | None
    data: DataFinding
    target_s: float | None
    rows: tuple[RowSignal, ...]

    @property
    def codes(self) -> list[str]:
        return [found.reason.value for found in self.reasons]

    def as_json(self, *, with_rows: bool = True) -> dict[str, Any]:
        """Return all fields as JSON values, with NaN as None and a fix for each reason.

        Without `with_rows`, `rows` is left out and the lists of similar rows in `data` are shortened.
        """
        values: dict[str, Any] = _finite({"format": FORMAT} | asdict(self))
        values["reasons"] = [
            {
                "code": found.reason.value,
                "decides": REASONS[found.reason].verdict is not None,
                "message": found.words,
                "fix": REASONS[found.reason].fix,
            }
            for found in self.reasons
        ]
        if not with_rows:
            del values["rows"]
            for name in ("contradictory", "duplicates", "near_duplicates"):
                values["data"][name] = values["data"][name][:SHOWN_GROUPS]
        return values


def judge_samples(
    job: JobSpec,
    plan: StepPlan,
    tasks: Sequence[Task],
    groups: Sequence[Group],
    others: Mapping[str, Sequence[Task]],
    *,
    samples: int,
    second_grades: Mapping[str, float | None],
    file: str = TRAINED,
    target_s: float | None = None,
    rollout_s: float | None = None,
) -> Readiness:
    """Return the result of a readiness check.

    Args:
        job: The job.
        plan: Plan of the job's steps.
        tasks: The sampled rows.
        groups: One group of `samples` rollouts for each sampled row.
        others: Rows of the job's other files, by job field.
        samples: Rollouts per row.
        second_grades: Second grade of each answer that was graded twice, by trace id; None if that grading failed.
        file: Job field that names the file of the sampled rows.
        target_s: Maximum seconds that the model and the tools should take per rollout; None if there is no target.
        rollout_s: Elapsed seconds per rollout, measured while the engines were fully loaded; None if unknown.
    """
    rows = measure_rows(groups, job.reinforcement.grader.pass_threshold)
    shares, grader = count_row_shares(rows), measure_grader(groups, second_grades)
    behavior, data = measure_behavior(groups, target_s), check_rows(file, tasks, others)
    reward = job.reinforcement.reward
    penalties = any((reward.tool_call_penalty, reward.turn_penalty, reward.token_penalty, reward.time_penalty_per_s))
    passing = bootstrap_interval(row.passed / row.graded for row in rows)
    verdict, reasons = decide_verdict(Evidence(rows, shares, passing, grader, behavior, data, penalties))
    signal = estimate_group_signal(groups, {*SIZES, plan.group_size})
    return Readiness(
        verdict=verdict,
        reasons=reasons,
        settings=() if behavior is None else tuple(recommend_settings(job, plan, signal, behavior)),
        estimate=estimate_training(plan, signal, rollout_s),
        samples=samples,
        rollouts=sum(len(group.rollouts) for group in groups),
        grade=bootstrap_interval(row.grade for row in rows),
        reward=bootstrap_interval((row.mean for row in rows), bounds=None),
        shares=shares,
        pass_at=estimate_pass_at(rows, samples),
        group_signal=signal,
        grader=grader,
        behavior=behavior,
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
