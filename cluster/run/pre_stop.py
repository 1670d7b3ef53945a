"""Run before a pod ends (`python -m agent_rft.cluster.run.pre_stop`): its training runs save a checkpoint and stop.

These are the runs whose driver or a learner rank is on this Ray node. Their drivers are asked as by a first signal, and
the pod waits until they have ended, for RAY_JOB_STOP_WAIT_TIME_S at most. The Ray jobs then have failed with exit code
130, so KubeRay retries them and a server continues them; a job that Ray itself stops would not be retried.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agent_rft.cluster.ray_cluster.drivers import Driver, drivers_on, without_ended
from agent_rft.cluster.ray_cluster.job_status import NEEDED_TO_STOP_S, STOP_WAIT
from agent_rft.cluster.ray_cluster.session import ray_session, unreachable
from agent_rft.cluster.run.signals import STOP_REQUEST

POLL_S = 0.5


def stop_runs(node: str, wait_s: float, head_answers: Callable[[], bool]) -> set[Driver]:
    """Ask the runs on this node to stop, wait until they have ended, and return those that have not by then.

    `head_answers` tells whether the cluster's head still answers.
    """
    deadline = time.monotonic() + wait_s
    left = drivers_on(node)
    ask: Any = ray.remote(num_cpus=0, max_retries=0)(_ask)
    for driver in left:
        there = NodeAffinitySchedulingStrategy(driver.node, soft=False)
        ask.options(scheduling_strategy=there).remote(driver.pid)
    # Ray's tables are in the head: a question that it does not answer would end this process after a minute.
    while head_answers() and (left := without_ended(left)):
        if time.monotonic() >= deadline:
            return left
        time.sleep(POLL_S)
    return set()


def _ask(pid: int) -> None:
    os.kill(pid, STOP_REQUEST)


def main() -> None:
    """Stops the runs of this pod's node."""
    wait_s = float(os.environ.get(STOP_WAIT, NEEDED_TO_STOP_S))
    address = os.environ.get("RAY_ADDRESS", "auto")
    if why := unreachable(address):
        print(f"the cluster's head at {address} is gone: {why}")
        return
    with ray_session(address):
        left = stop_runs(ray.get_runtime_context().get_node_id(), wait_s, lambda: unreachable(address) is None)
    if left:
        raise SystemExit(f"{len(left)} run(s) have not ended within {wait_s:g} s: {STOP_WAIT} is too small")


if __name__ == "__main__":
    main()
