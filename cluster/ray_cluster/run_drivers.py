"""Drivers of training runs on the cluster, found through the learner rank actors that they own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from agent_rft.cluster.ray_cluster.ray_internals import Row, list_actors, list_ray_jobs
from agent_rft.cluster.ray_cluster.reservations import RANK_NAME


class RunDriver(NamedTuple):
    """Driver of a run: its Ray job id, its node and its process id."""

    job: str
    node: str
    pid: int


def find_drivers(node: str) -> set[RunDriver]:
    """Return the drivers of the training runs that use a node.

    A run uses the node `node` if the run's driver or one of its learner ranks is on the node.
    """
    return match_drivers(node, list_actors(), list_ray_jobs())


def match_drivers(node: str, actors: Iterable[Row], jobs: Iterable[Row]) -> set[RunDriver]:
    """Return the drivers of the training runs that use `node`, given Ray's tables of actors and jobs.

    `find_drivers` defines when a run uses a node.
    """
    pids = {job["JobID"]: job["DriverPid"] for job in jobs if not job["IsDead"]}
    return {
        RunDriver(actor["JobID"], actor["OwnerAddress"]["NodeID"], pids[actor["JobID"]])
        for actor in actors
        if RANK_NAME in actor["Name"]
        and actor["State"] == "ALIVE"
        and actor["JobID"] in pids
        and node in (actor["Address"]["NodeID"], actor["OwnerAddress"]["NodeID"])
    }


def drop_ended(drivers: set[RunDriver]) -> set[RunDriver]:
    """Return the drivers in `drivers` that are still connected to Ray."""
    ended = {job["JobID"] for job in list_ray_jobs() if job["IsDead"]}
    return {driver for driver in drivers if driver.job not in ended}
