"""Remedies of a job that does not fit, found by trying: the layout with each one fits.

First one setting at a time, those before others that change least about the training; then several (proposal.py); and
more nodes. The number of tries is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from cluster.planning.layout import Request, Settings, lay_out
from cluster.planning.nodes import Node
from cluster.planning.proposal import MIN_CONTEXT, MIN_MICRO_BATCH, halves, propose

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
    return str(value).lower() if isinstance(value, bool) else str(value)


def remedies_of(request: Request) -> list[Remedy]:
    """What makes a request fit that does not: up to MAX_REMEDIES changes of settings, and nodes to add."""
    found: list[Remedy] = []
    for alternatives in _of_one_setting(request):
        tried = (Remedy({path: value}) for path, value in alternatives)
        if fitting := next((remedy for remedy in tried if _fits(request, remedy)), None):
            found.append(fitting)
        if len(found) == MAX_REMEDIES:
            break
    if not found and (settings := propose(request)):
        found.append(Remedy(settings))
    added = next((remedy for remedy in _more_nodes(request) if _fits(request, remedy)), None)
    if added is None and not found:
        added = _more_nodes_and_settings(request)
    return [*found, added] if added is not None else found


def _fits(request: Request, remedy: Remedy) -> bool:
    return lay_out(remedy.applied(request)).fits


def _of_one_setting(request: Request) -> Iterator[list[tuple[str, Any]]]:
    """Values of one setting after another, each from the least change to the largest."""
    cluster = request.job.cluster
    per_node = int(max((node.gpus for node in request.nodes), default=0))
    gpus = lay_out(request).placement.engine_gpus

    def of(name: str, values: Sequence[Any]) -> list[tuple[str, Any]]:
        return [(f"cluster.{name}", value) for value in values]

    if cluster.dtype != "auto":
        yield of("dtype", ["auto"])
    yield of("zero_stage", range(cluster.zero_stage + 1, 4))
    yield of("micro_batch_tokens", halves(cluster.micro_batch_tokens, MIN_MICRO_BATCH))
    if cluster.colocated:
        yield of("colocated", [False])
        if request.job.method.type == "reinforcement" and request.job.reinforcement.algorithm.max_staleness:
            yield [("method.reinforcement.algorithm.max_staleness", 0)]
    yield of("learner_ranks", range(cluster.learner_ranks + 1, cluster.learner_ranks + 1 + MAX_MORE_RANKS))
    yield of("engine_gpus", [number for number in (1, 2, 4, 8, 16) if gpus < number <= per_node])
    yield of("engines", _fewer(cluster.engines))
    yield of("learner_ranks", _fewer(cluster.learner_ranks))
    yield of("engine_gpus", _fewer(gpus))
    yield of("engine_cores", _fewer(cluster.engine_cores))
    yield of("rank_cores", _fewer(cluster.rank_cores))
    yield of("context_length", halves(request.context_length, MIN_CONTEXT))
    if gpus:
        yield of("engine_gpus", [0])


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
