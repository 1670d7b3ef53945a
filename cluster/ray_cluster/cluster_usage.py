"""Use of the cluster's resources: the runs that wait for them, and the runs and served models that hold them.

The name of a placement group or actor contains the name of its run or application, so any process can find the owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ray.util.placement_group import placement_group_table

from agent_rft.cluster.planning.placement import Bundle, assign_nodes, has_resources
from agent_rft.cluster.ray_cluster.ray_internals import (
    Row,
    free_resources,
    is_adding_nodes,
    list_actors,
    load_value,
    store_value,
)

MODEL_APPS = "agent-rft-model-"
"""Prefix of the Ray Serve application names of served models."""
REQUIRED, FURTHER = "required", "further"
"""Parts of placement group names. A run waits for its REQUIRED group. Each FURTHER group adds one engine."""
_REPLICA = "SERVE_REPLICA::"
_NAMESPACE = b"agent-rft"


def placement_group_name(run: str, part: str, number: int = 0) -> str:
    """Return the name of a placement group of a run; `part` is REQUIRED or FURTHER."""
    return f"{run}:{part}-{number}"


@dataclass(frozen=True, slots=True)
class ClusterUsage:
    """Snapshot of the use of the cluster's resources.

    Attributes:
        free: Free resources by node id.
        waiting: Bundles that each waiting run needs to start. The runs are in no particular order.
        running: Runs that hold resources.
        engines: Node ids of the engines of a served model, by Ray Serve application. The node id of an engine that
            waits for resources is "".
        adds_nodes: Whether the autoscaler is adding a node.
    """

    free: Mapping[str, Bundle] = field(default_factory=dict)
    waiting: Mapping[str, Sequence[Bundle]] = field(default_factory=dict)
    running: Sequence[str] = ()
    engines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    adds_nodes: bool = False

    def can_hold(self, bundle: Bundle) -> bool:
        """Return whether a node has enough free resources for `bundle`, and no run waits for resources."""
        return not self.waiting and any(has_resources(node, bundle) for node in self.free.values())

    def choose_apps_to_stop(self, engine: Bundle, idle_s: Mapping[str, float]) -> list[str]:
        """Return the Ray Serve applications to stop, as few as possible, so that a waiting run can start.

        The list is empty if no run needs an application to stop, or if stopping applications does not help any run.

        Args:
            engine: Resources of each engine of a served model.
            idle_s: Idle seconds of each application that may be stopped. The applications with the longest idle time
                are stopped first.
        """
        names = sorted(idle_s, key=lambda name: -idle_s[name])
        for bundles in self.waiting.values():
            if not self._fits(bundles, (), engine):
                chosen: list[str] = []
                for name in names:
                    chosen.append(name)
                    if self._fits(bundles, chosen, engine):
                        for other in chosen[:-1]:
                            if self._fits(bundles, [one for one in chosen if one != other], engine):
                                chosen.remove(other)
                        return chosen
        return []

    def _fits(self, bundles: Sequence[Bundle], released: Iterable[str], engine: Bundle) -> bool:
        free = {node: dict(resources) for node, resources in self.free.items()}
        for name in released:
            for node in self.engines.get(name, ()):
                if node in free:
                    for kind, amount in engine.items():
                        free[node][kind] = free[node].get(kind, 0.0) + amount
        return None not in assign_nodes(bundles, list(free.values()))


def read_usage() -> ClusterUsage:
    """Return the current use of this process's cluster. The call takes a few milliseconds."""
    return parse_usage(free_resources(), placement_group_table().values(), list_actors(), adds_nodes=is_adding_nodes())


def parse_usage(
    free: Mapping[str, Bundle], groups: Iterable[Row], actors: Iterable[Row], adds_nodes: bool
) -> ClusterUsage:
    """Compute a cluster's usage from its free resources and Ray's tables of placement groups and actors."""
    waiting: dict[str, list[Bundle]] = {}
    running: dict[str, None] = {}
    for group in groups:
        run, _, part = group["name"].partition(":")
        if group["state"] == "CREATED":
            running[run] = None
        elif group["state"] == "PENDING" and part.rpartition(":")[2].startswith(REQUIRED):
            waiting[run] = list(group["bundles"].values())
    engines: dict[str, list[str]] = {}
    for actor in actors:
        app = actor["Name"].removeprefix(_REPLICA).partition("#")[0]
        if actor["Name"].startswith(_REPLICA + MODEL_APPS) and actor["State"] != "DEAD":
            engines.setdefault(app, []).append(actor["Address"]["NodeID"] if actor["State"] == "ALIVE" else "")
    return ClusterUsage(free, waiting, [run for run in running if run not in waiting], engines, adds_nodes)


def record_model_name(app: str, model: str) -> None:
    """Record which model a Ray Serve application serves, for `list_holders`."""
    store_value(app, model, _NAMESPACE)


def list_holders(use: ClusterUsage, run: str) -> list[str]:
    """Describe the runs and served models that hold resources, except `run`."""
    found = [f"the run {other}" for other in use.running if other != run]
    for app, nodes in use.engines.items():
        if any(nodes):
            model = load_value(app, _NAMESPACE)
            found.append(f"the served model {model}" if model else "a served model")
    return found
