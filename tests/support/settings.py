"""All models of settings: of a job, its request, the operator's configuration, a list of nodes, and the plan."""

from __future__ import annotations

from collections.abc import Iterator

from agent_rft.serve.jobs.job_request import JobRequestBody
from agent_rft.spec.endpoints import StrictModel
from agent_rft.spec.job import JobSpec
from agent_rft.spec.node_groups import NodesFile
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.spec.step_plan import StepPlan

FILES = (JobSpec, StepPlan, OperatorConfig, NodesFile, JobRequestBody)


def all_models() -> list[type[StrictModel]]:
    found = list(dict.fromkeys(_below(StrictModel)))
    assert set(FILES) <= set(found)
    return found


def _below(base: type[StrictModel]) -> Iterator[type[StrictModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _below(model)
