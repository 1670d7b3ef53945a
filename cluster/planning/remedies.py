"""Remedies of a job that does not fit, found by trying: the layout with each one fits.

First one setting at a time, those before others that change least about the training; then several (proposal.py); and
more nodes. The number of tries is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from cluster.planning.layout import lay_out
from cluster.planning.nodes import Node
from cluster.planning.placement import Request, Settings
from cluster.planning.proposal import MIN_CONTEXT, MIN_MICRO_BATCH, halves, propose
from trainer.spec.lora import LoraSpec

MAX_REMEDIES = 2
MORE_NODES = (1, 2, 3, 4, 8, 16)
MAX_KINDS = 4
MAX_MORE_RANKS = 16
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
    """What makes a request fit that does not: up to MAX_REMEDIES changes of settings, and nodes to add."""
    found: list[Remedy] = []
    for one_setting, context_stays in ((_gently, True), (_with_lora, True), (_harshly, False)):
        for alternatives in one_setting(request):
            tried = (Remedy({path: value}) for path, value in alternatives)
            if fitting := next((remedy for remedy in tried if _fits(request, remedy)), None):
                found.append(fitting)
            if len(found) == MAX_REMEDIES:
                break
        if not found and (settings := propose(request, context_stays=context_stays)):
            found.append(Remedy(settings))
        if found:
            break
    added = next((remedy for remedy in _more_nodes(request) if _fits(request, remedy)), None)
    if added is None and not found:
        added = _more_nodes_and_settings(request)
    return [*found, added] if added is not None else found


def _fits(request: Request, remedy: Remedy) -> bool:
    return lay_out(remedy.applied(request)).fits


def _of(name: str, values: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(f"cluster.{name}", value) for value in values]


def _gently(request: Request) -> Iterator[list[tuple[str, Any]]]:
    """Values of one setting after another, each from the least change to the largest."""
    cluster = request.job.cluster
    per_node = int(max((node.gpus for node in request.nodes), default=0))
    placement = lay_out(request).placement
    gpus = placement.engine_gpus
    if cluster.dtype != "auto":
        yield _of("dtype", ["auto"])
    yield _of("zero_stage", range(cluster.zero_stage + 1, 4))
    if cluster.micro_batch_tokens != "auto":
        yield _of("micro_batch_tokens", halves(cluster.micro_batch_tokens, MIN_MICRO_BATCH))
    if placement.shares_gpus and cluster.weight_transport == "broadcast":
        yield _of("weight_transport", ["object_store"])
    if placement.colocated:
        yield _of("colocated", [False])
    if cluster.share_engines:
        yield _of("share_engines", [False])
    yield _of("learner_ranks", range(cluster.learner_ranks + 1, cluster.learner_ranks + 1 + MAX_MORE_RANKS))
    yield _of("engine_gpus", [number for number in (1, 2, 4, 8, 16) if gpus < number <= per_node])
    yield _of("engines", _fewer(cluster.engines))
    yield _of("learner_ranks", _fewer(cluster.learner_ranks))
    yield _of("engine_gpus", _fewer(gpus))
    yield _of("engine_cores", _fewer(cluster.engine_cores))
    yield _of("rank_cores", _fewer(cluster.rank_cores))


def _with_lora(request: Request) -> Iterator[list[tuple[str, Any]]]:
    """An adapter, which learns as much from reinforcement, in place of all weights."""
    if request.job.method.type == "reinforcement" and request.job.optimizer.lora is None:
        yield [("method.reinforcement.algorithm.lora", LoraSpec())]


def _harshly(request: Request) -> Iterator[list[tuple[str, Any]]]:
    """As `_gently`, of settings that change what is learned, or make it take far longer."""
    yield _of("context_length", halves(request.context_length, MIN_CONTEXT))
    if lay_out(request).placement.engine_gpus:
        yield _of("engine_gpus", [0])


def _fewer(number: int) -> list[int]:
    """Smaller numbers, the largest first: the next ones, then halves."""
    return [*range(number - 1, max(0, number - 9), -1), *halves(max(1, number - 8), 1)]


def _more_nodes(request: Request) -> Iterator[Remedy]:
    """Nodes like those that are there, the fewest first."""
    kinds = {replace(node, name=""): node for node in reversed(request.nodes)}
    for count, node in product(MORE_NODES, list(reversed(kinds.values()))[:MAX_KINDS]):
        yield Remedy(node=node, count=count)


def _more_nodes_and_settings(request: Request) -> Remedy | None:
    for remedy in _more_nodes(request):
        if settings := propose(remedy.applied(request)):
            return replace(remedy, settings=settings)
    return None
