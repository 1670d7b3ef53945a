"""How far a job is, and how well it does now against before: read from the few of its events that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from agent_rft.events import VALIDATION, Evaluated, LossEvaluated, kind_of
from agent_rft.serve.stores.job_tables import EventRow

Split = Literal["train", "validation"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The last step and its numbers, which are rewards, or losses if `metric` says so; None: not measured.

    `baseline` is that of the validation file before the first step, or else that of the first step's rollouts.
    """

    metric: Literal["reward", "loss"]
    step: int
    total_steps: int | None
    train: float | None
    validation: float | None
    baseline: float | None
    baseline_of: Split | None


def progress_of(session: Session, job_id: str, *, validates: bool) -> Progress | None:
    """The progress of a job, of which a validation file is graded or not; None before it has measured anything.

    It reads four rows, each near an end of the job's events, however many there are.
    """
    steps = EventRow.job_id == job_id, EventRow.type == "metrics"
    kinds = EventRow.data["kind"].as_string().in_((kind_of(Evaluated), kind_of(LossEvaluated)))
    named = EventRow.data["name"].as_string()
    whole = EventRow.job_id == job_id, EventRow.type == "message", kinds, named.is_(None) | (named == VALIDATION)

    def end(where: tuple[Any, ...], *, newest: bool) -> dict[str, Any]:
        order = EventRow.number.desc() if newest else EventRow.number
        return session.scalar(select(EventRow.data).where(*where).order_by(order).limit(1)) or {}

    last = end(steps, newest=True)
    validated = end(whole, newest=True) if validates else {}
    if not last and not validated:
        return None
    loss = "loss" in validated if validated else last.get("train_mean_reward") is None
    train = "train_loss" if loss else "train_mean_reward"
    first = end(whole, newest=False) if validates else {}
    baseline: float | None = None
    baseline_of: Split | None = None
    if first.get("step") == 0:
        baseline, baseline_of = _of_file(first), "validation"
    elif last:
        baseline, baseline_of = end(steps, newest=False).get(train), "train"
    return Progress(
        "loss" if loss else "reward",
        int(last.get("step", 0)),
        last.get("total_steps"),
        last.get(train),
        _of_file(validated),
        baseline,
        baseline_of if baseline is not None else None,
    )


def _of_file(validated: Mapping[str, Any]) -> float | None:
    value = validated.get("loss", validated.get("evaluation", {}).get("reward"))
    return None if value is None else float(value)
