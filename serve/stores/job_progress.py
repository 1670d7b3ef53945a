"""Progress of a job: its step, and its first and current reward or loss, read from a few of the job's events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from agent_rft.events import VALIDATION, Evaluated, LossEvaluated, event_kind
from agent_rft.serve.stores.job_tables import EventRow

Split = Literal["train", "validation"]


@dataclass(frozen=True, slots=True)
class MeasuredProgress:
    """Latest step of a job, and its rewards or losses, depending on `metric`. Values that were not measured are None.

    `baseline` is the validation reward or loss before the first step, or else the training value of the first step.
    """

    metric: Literal["reward", "loss"]
    step: int
    total_steps: int | None
    train: float | None
    validation: float | None
    baseline: float | None
    baseline_of: Split | None


def load_progress(session: Session, job_id: str, *, validates: bool) -> MeasuredProgress | None:
    """Return the progress of a job, or None if nothing was measured yet.

    `validates` is True if the job has a validation file. The function reads at most four of the job's events, however
    many the job has.
    """
    steps = EventRow.job_id == job_id, EventRow.type == "metrics"
    kinds = EventRow.data["kind"].as_string().in_((event_kind(Evaluated), event_kind(LossEvaluated)))
    named = EventRow.data["name"].as_string()
    whole = EventRow.job_id == job_id, EventRow.type == "message", kinds, named.is_(None) | (named == VALIDATION)

    def read_data(where: tuple[Any, ...], *, newest: bool) -> dict[str, Any]:
        order = EventRow.number.desc() if newest else EventRow.number
        return session.scalar(select(EventRow.data).where(*where).order_by(order).limit(1)) or {}

    last = read_data(steps, newest=True)
    validated = read_data(whole, newest=True) if validates else {}
    if not last and not validated:
        return None
    loss = "loss" in validated if validated else last.get("train_mean_reward") is None
    train = "train_loss" if loss else "train_mean_reward"
    first = read_data(whole, newest=False) if validates else {}
    baseline: float | None = None
    baseline_of: Split | None = None
    if first.get("step") == 0:
        baseline, baseline_of = _file_value(first), "validation"
    elif last:
        baseline, baseline_of = read_data(steps, newest=False).get(train), "train"
    return MeasuredProgress(
        "loss" if loss else "reward",
        int(last.get("step", 0)),
        last.get("total_steps"),
        last.get(train),
        _file_value(validated),
        baseline,
        baseline_of if baseline is not None else None,
    )


def _file_value(validated: Mapping[str, Any]) -> float | None:
    value = validated.get("loss", validated.get("evaluation", {}).get("reward"))
    return None if value is None else float(value)
