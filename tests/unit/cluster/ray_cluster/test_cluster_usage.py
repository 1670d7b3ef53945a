"""Who waits for the cluster's resources, who holds them, and which idle engines a waiting run needs."""

from __future__ import annotations

from typing import Any

import pytest

from agent_rft.cluster.ray_cluster.cluster_usage import (
    FURTHER,
    MODEL_APPS,
    REQUIRED,
    ClusterUsage,
    parse_usage,
    placement_group_name,
)

CORE = {"CPU": 1.0}
A, B, C = (f"{MODEL_APPS}{letter}" for letter in "abc")


def group(name: str, state: str, *bundles: dict[str, float]) -> dict[str, Any]:
    return {"name": name, "state": state, "bundles": dict(enumerate(bundles))}


def replica(app: str, state: str, node: str) -> dict[str, Any]:
    return {"Name": f"SERVE_REPLICA::{app}#engine#x1", "State": state, "Address": {"NodeID": node}}


def test_tables_of_ray_are_read() -> None:
    use = parse_usage(
        {"n1": {"CPU": 1.0}},
        [
            group(placement_group_name("ftjob-1", REQUIRED), "CREATED", CORE, CORE),
            group(placement_group_name("ftjob-1", FURTHER, 1), "PENDING", CORE),
            group(placement_group_name("ftjob-2", REQUIRED), "PENDING", CORE, {"CPU": 2.0}),
            group(placement_group_name("ftjob-3:again", REQUIRED), "PENDING", CORE),
            group(placement_group_name("ftjob-4", REQUIRED), "REMOVED", CORE),
            group("somebody's group", "PENDING", CORE),
        ],
        [
            replica(A, "ALIVE", "n1"),
            replica(A, "ALIVE", "n2"),
            replica(B, "PENDING_CREATION", ""),
            replica(C, "DEAD", "n1"),
            replica("another-app", "ALIVE", "n1"),
        ],
        adds_nodes=False,
    )
    assert use.waiting == {"ftjob-2": [CORE, {"CPU": 2.0}], "ftjob-3": [CORE]}
    assert list(use.running) == ["ftjob-1"], "a further engine of a running job does not make it wait"
    assert use.engines == {A: ["n1", "n2"], B: [""]}


def test_a_model_has_room_only_if_no_run_waits() -> None:
    assert ClusterUsage(free={"n1": CORE}).can_hold(CORE)
    assert not ClusterUsage(free={"n1": CORE}).can_hold({"CPU": 2.0})
    assert not ClusterUsage(free={"n1": CORE}, waiting={"ftjob-1": [CORE, CORE]}).can_hold(CORE)


@pytest.mark.parametrize(
    ("needed", "idle_s", "released"),
    [
        ([CORE, CORE], {A: 20.0}, [A]),
        ([CORE, CORE], {A: 20.0, B: 30.0}, [B]),  # the one that is idle for longest
        ([CORE, CORE, CORE], {A: 20.0, B: 30.0}, [B, A]),
        ([CORE, CORE, CORE], {A: 20.0}, []),  # it would not start
        ([{"CPU": 2.0}], {A: 20.0, C: 40.0}, [A]),  # C is idle for longest, but on another node
        ([CORE], {A: 20.0}, []),  # it fits without
        ([CORE, CORE], {}, []),
    ],
)
def test_only_engines_with_which_a_waiting_run_starts_are_released(
    needed: list[dict[str, float]], idle_s: dict[str, float], released: list[str]
) -> None:
    engines = {A: ["n1"], B: ["n1"], C: ["n2"]}
    use = ClusterUsage({"n1": {"CPU": 1.0}, "n2": {"CPU": 0.0}}, {"ftjob-1": needed}, (), engines)
    assert use.choose_apps_to_stop(CORE, idle_s) == released


def test_the_engines_of_a_lost_node_free_nothing() -> None:
    use = ClusterUsage({"n1": {"CPU": 1.0}}, {"ftjob-1": [CORE, CORE]}, (), {A: ["gone"], B: [""]})
    assert use.choose_apps_to_stop(CORE, {A: 20.0, B: 20.0}) == []
