"""The runs that a Ray node holds: those whose driver or a learner rank is there."""

from __future__ import annotations

from typing import Any

import pytest

from agent_rft.cluster.ray_cluster.run_drivers import RunDriver, match_drivers


def actor(job: str, name: str, node: str, owner: str, state: str = "ALIVE") -> dict[str, Any]:
    return {
        "JobID": job,
        "Name": name,
        "State": state,
        "Address": {"NodeID": node},
        "OwnerAddress": {"NodeID": owner},
    }


JOBS = [
    {"JobID": "1", "DriverPid": 11, "IsDead": False},
    {"JobID": "2", "DriverPid": 22, "IsDead": False},
    {"JobID": "3", "DriverPid": 33, "IsDead": True},
]
ACTORS = [
    actor("1", "first:learner-rank-0", "gpu-a", "head"),
    actor("1", "first:learner-rank-1", "gpu-b", "head"),
    actor("1", "first:engine-0", "gpu-c", "head"),
    actor("2", "second:learner-rank-0", "gpu-b", "other"),
    actor("3", "third:learner-rank-0", "gpu-a", "head"),
    actor("2", "second:learner-rank-1", "gpu-d", "other", "DEAD"),
]
FIRST, SECOND = RunDriver("1", "head", 11), RunDriver("2", "other", 22)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("head", {FIRST}),
        ("other", {SECOND}),
        ("gpu-a", {FIRST}),
        ("gpu-b", {FIRST, SECOND}),
        ("gpu-c", set()),  # an engine is replaced
        ("gpu-d", set()),
    ],
)
def test_a_node_holds_the_runs_whose_driver_or_a_rank_is_there(node: str, expected: set[RunDriver]) -> None:
    assert match_drivers(node, ACTORS, JOBS) == expected
