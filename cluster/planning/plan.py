"""The plan of a job: where everything goes, what does not fit, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cluster.planning.layout import ClusterPlan, lay_out
from cluster.planning.model_shape import ModelShape
from cluster.planning.nodes import Node
from cluster.planning.placement import RecordedLayout, Request
from cluster.planning.remedies import NONE_FOUND, remedies_of
from trainer.errors import Problem
from trainer.spec.job import JobSpec


def plan_placement(
    job: JobSpec,
    nodes: Sequence[Node],
    model: ModelShape | None,
    context_length: int,
    *,
    learner: bool = True,
    recorded: RecordedLayout | None = None,
    **others: Any,
) -> ClusterPlan:
    """Plan a job on `nodes`: resolve settings that are `auto`, place each actor, and find what does not fit.

    Without a `model`, memory is not checked. Without `learner`, the run only grades. `recorded` is the layout of the
    run that is resumed; `others` are further fields of the Request.
    """
    return plan_of(Request(job, tuple(nodes), model, context_length, learner, recorded or RecordedLayout(), **others))


def plan_of(request: Request, *, fewest_gpus: bool = False) -> ClusterPlan:
    """The layout with remedies: each one that is named makes the whole job fit."""
    plan = lay_out(request, fewest_gpus=fewest_gpus)
    if plan.fits:
        return plan
    remedy = "; or ".join(map(str, remedies_of(request))) or NONE_FOUND

    def with_remedy(problems: Sequence[Problem]) -> tuple[Problem, ...]:
        return tuple(replace(problem, remedy=remedy) for problem in problems)

    return replace(
        plan,
        lacking=with_remedy(plan.lacking),
        setting_problems=with_remedy(plan.setting_problems),
        memory_problems=with_remedy(plan.memory_problems),
    )
