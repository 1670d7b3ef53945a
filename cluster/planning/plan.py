"""The plan of a job: where everything goes, what does not fit, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from cluster.planning.layout import ClusterPlan, lay_out
from cluster.planning.model import ModelShape
from cluster.planning.nodes import Node
from cluster.planning.placement import RecordedLayout, Request, Settings
from trainer.errors import Problem
from trainer.spec.job import ClusterSpec, JobSpec
from trainer.spec.lora import LoraSpec

MAX_REMEDIES = 2
MORE_NODES = (1, 2, 3, 4, 8, 16)
MAX_KINDS = 4
MAX_TRIES = 60
"""Placements that are tried for each fix: one that fits later is not found, which keeps a refusal within seconds."""
MIN_CONTEXT = 1024
FREED = (
    "dtype",
    "zero_stage",
    "micro_batch_tokens",
    "weight_transport",
    "colocated",
    "share_engines",
    "learner_ranks",
    "engines",
    "engine_gpus",
    "offload",
    "max_num_seqs",
    "engine_cores",
    "rank_cores",
)
"""The settings of `cluster` that may be left to their defaults, the least change first."""
NONE_FOUND = "no other settings below `cluster` were found that fit; use nodes with more cores, GPUs or memory"


@dataclass(frozen=True, slots=True)
class Remedy:
    """Settings to change, or `count` nodes to add that are like `node`."""

    settings: Settings = field(default_factory=dict)
    node: Node | None = None
    count: int = 0

    def applied(self, request: Request) -> Request:
        added = [replace(self.node, name=f"added {i}") for i in range(self.count)] if self.node is not None else []
        return replace(request.with_settings(self.settings), nodes=(*request.nodes, *added))

    def __str__(self) -> str:
        nodes = "" if self.node is None else f"add {self.count} node{'s' * (self.count > 1)} like {self.node.name}"
        settings = _listed([f"{path} to {_text(value)}" for path, value in self.settings.items()])
        return " and ".join(filter(None, (nodes, settings and f"set {settings}")))


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def _text(value: Any) -> str:
    if isinstance(value, LoraSpec):
        return "{}"  # its defaults
    return str(value).lower() if isinstance(value, bool) else str(value)


def remedies_of(request: Request) -> list[Remedy]:
    """Return what makes a request fit that does not: up to MAX_REMEDIES changes of settings, and nodes to add."""
    found = next(filter(None, _changes(request)), [])
    added = next((remedy for remedy in _more_nodes(request) if _fits(request, remedy)), None)
    if added is None and not found:
        added = _more_nodes_and_settings(request)
    return [*found, added] if added is not None else found


def _changes(request: Request) -> Iterator[list[Remedy]]:
    """Yield fixes without other nodes, those that change least about the training first."""
    freed, adapted = _freed(request), _adapted(request)
    on_device = {path: value for path, value in freed.items() if path != "cluster.offload"}
    alone = (Remedy({path: value}) for path, value in on_device.items())
    yield [remedy for remedy in alone if _fits(request, remedy)][:MAX_REMEDIES]
    # Offload comes last, because it makes every step slower.
    for settings in (on_device, adapted, on_device | adapted, freed, freed | adapted):
        yield _smallest(request, settings)
    for context in _halves(request.context_length):
        for settings in ({}, freed | adapted):
            yield _smallest(request, settings | {"cluster.context_length": context})
    if lay_out(request).placement.engine_gpus:
        yield _smallest(request, freed | {"cluster.engine_gpus": 0})


def _freed(request: Request) -> dict[str, Any]:
    """The settings that the job gives, with their defaults."""
    cluster, defaults = request.job.cluster, ClusterSpec()
    values = {name: getattr(defaults, name) for name in FREED}
    return {f"cluster.{name}": value for name, value in values.items() if getattr(cluster, name) != value}


def _adapted(request: Request) -> dict[str, Any]:
    """The setting that trains an adapter in place of all weights; empty if the job may do so already."""
    lora, uses_gpus = request.job.optimizer.lora, lay_out(request).placement.engine_gpus > 0
    if not request.has_adapters or isinstance(lora, LoraSpec) or (lora == "auto" and uses_gpus):
        return {}
    return {f"method.{request.job.method.type}.algorithm.lora": LoraSpec()}


def _smallest(request: Request, settings: dict[str, Any]) -> list[Remedy]:
    """Return the fix with those of the `settings` that are needed; empty if they do not suffice."""
    if not settings or not _fits(request, Remedy(settings)):
        return []
    for path in list(settings):
        fewer = {other: value for other, value in settings.items() if other != path}
        if _fits(request, Remedy(fewer)):
            settings = fewer
    return [Remedy(settings)]


def _halves(number: int) -> list[int]:
    found = []
    while (number := number // 2) >= MIN_CONTEXT:
        found.append(number)
    return found


def _fits(request: Request, remedy: Remedy) -> bool:
    return lay_out(remedy.applied(request), max_tries=MAX_TRIES).fits


def _more_nodes(request: Request) -> Iterator[Remedy]:
    """Nodes like those that are there, the fewest first."""
    kinds = {replace(node, name=""): node for node in reversed(request.nodes)}
    for count, node in product(MORE_NODES, list(reversed(kinds.values()))[:MAX_KINDS]):
        yield Remedy(node=node, count=count)


def _more_nodes_and_settings(request: Request) -> Remedy | None:
    settings = _freed(request) | _adapted(request)
    for remedy in _more_nodes(request) if settings else ():
        if found := _smallest(remedy.applied(request), settings):
            return replace(remedy, settings=found[0].settings)
    return None


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
