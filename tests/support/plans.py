"""Plans of jobs, without a job file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_rft.cluster.planning.cluster_plan import plan_cluster
from agent_rft.cluster.planning.layout import ClusterPlan
from agent_rft.cluster.planning.model_shape import ModelShape
from agent_rft.cluster.planning.placement import PlanRequest, RecordedLayout
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.spec.job import JobSpec


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
    return plan_cluster(
        PlanRequest(job, tuple(nodes), model, context_length, learner, recorded or RecordedLayout(), **others)
    )
