"""The plan of a job: where everything goes, what does not fit, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cluster.planning.layout import ClusterPlan, Request, lay_out
from cluster.planning.model_shape import ModelShape
from cluster.planning.nodes import Node
from cluster.planning.remedies import NONE_FOUND, remedies_of
from trainer.spec.job import JobSpec


def plan_placement(
    job: JobSpec, nodes: Sequence[Node], model: ModelShape | None, context_length: int, *, learner: bool = True
) -> ClusterPlan:
    """The placement of a job on `nodes`: settings that are `auto`, a node and memory per actor, and what does not fit.

    Without a `model`, memory is not checked. Without `learner`, the run only grades.
    """
    return plan_of(Request(job, tuple(nodes), model, context_length, learner))


def plan_of(request: Request) -> ClusterPlan:
    """The layout with remedies: each one that is named makes the whole job fit."""
    plan = lay_out(request)
    if plan.fits:
        return plan
    remedy = "; or ".join(map(str, remedies_of(request))) or NONE_FOUND
    return replace(
        plan,
        lacking=tuple(replace(problem, remedy=remedy) for problem in plan.lacking),
        problems=tuple(replace(problem, remedy=remedy) for problem in plan.problems),
    )
