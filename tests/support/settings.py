"""All models of settings: of a job, its request, the operator's configuration, a list of nodes, and the plan."""

from __future__ import annotations

from collections.abc import Iterator

from agent_rft.serve.jobs.request import WireJob
from agent_rft.spec.endpoints import Strict
from agent_rft.spec.job import JobSpec
from agent_rft.spec.nodes import NodesFile
from agent_rft.spec.operator.config import Operator
from agent_rft.spec.plan import Plan

FILES = (JobSpec, Plan, Operator, NodesFile, WireJob)


def all_models() -> list[type[Strict]]:
    found = list(dict.fromkeys(_below(Strict)))
    assert set(FILES) <= set(found)
    return found


def _below(base: type[Strict]) -> Iterator[type[Strict]]:
    for model in base.__subclasses__():
        yield model
        yield from _below(model)
