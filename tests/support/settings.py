"""All models of settings: of a job, its request, the operator's configuration, a list of nodes, and the plan."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.jobs.request import WireJob
from trainer.spec.endpoints import Strict
from trainer.spec.job import JobSpec
from trainer.spec.nodes import NodesFile
from trainer.spec.operator.config import Operator
from trainer.spec.plan import Plan

FILES = (JobSpec, Plan, Operator, NodesFile, WireJob)


def all_models() -> list[type[Strict]]:
    found = list(dict.fromkeys(_below(Strict)))
    assert set(FILES) <= set(found)
    return found


def _below(base: type[Strict]) -> Iterator[type[Strict]]:
    for model in base.__subclasses__():
        yield model
        yield from _below(model)
