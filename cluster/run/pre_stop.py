"""Pre-stop hook of a pod (`python -m agent_rft.cluster.run.pre_stop`): lets training runs save a checkpoint and end.

The hook stops each run that has its driver or a learner rank on this Ray node. It sends a stop signal to the driver of
the run, and waits up to RAY_JOB_STOP_WAIT_TIME_S until the driver ends. The driver's Ray job then fails with exit code
130, so that KubeRay retries the Ray job or a server resumes the run. If Ray itself stopped the Ray job, it would not be
retried.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agent_rft.cluster.ray_cluster.ray_job_status import NEEDED_TO_STOP_S, STOP_WAIT
from agent_rft.cluster.ray_cluster.ray_session import ray_session, why_unreachable
from agent_rft.cluster.ray_cluster.run_drivers import RunDriver, drop_ended, find_drivers
from agent_rft.cluster.run.stop_signals import STOP_REQUEST

POLL_S = 0.5


def stop_runs(node: str, wait_s: float, head_answers: Callable[[], bool]) -> set[RunDriver]:
    """Signal the runs on this node to stop, wait up to `wait_s`, and return the drivers that have not ended.

    `head_answers` returns whether the cluster's head still answers. If not, the wait ends and the result is empty.
    """
    deadline = time.monotonic() + wait_s
    left = find_drivers(node)
    send_stop: Any = ray.remote(num_cpus=0, max_retries=0)(_send_stop)
    for driver in left:
        there = NodeAffinitySchedulingStrategy(driver.node, soft=False)
        send_stop.options(scheduling_strategy=there).remote(driver.pid)
    # The head has Ray's tables. A request that it does not answer would end this process after a minute.
    while head_answers() and (left := drop_ended(left)):
        if time.monotonic() >= deadline:
            return left
        time.sleep(POLL_S)
    return set()


def _send_stop(pid: int) -> None:
    os.kill(pid, STOP_REQUEST)


def main() -> None:
    """Stop the runs of this pod's node."""
    wait_s = float(os.environ.get(STOP_WAIT, NEEDED_TO_STOP_S))
    address = os.environ.get("RAY_ADDRESS", "auto")
    if error := why_unreachable(address):
        print(f"cannot reach the cluster's head at {address}: {error}")
        return
    with ray_session(address):
        left = stop_runs(ray.get_runtime_context().get_node_id(), wait_s, lambda: why_unreachable(address) is None)
    if left:
        raise SystemExit(f"{len(left)} run(s) did not end within {wait_s:g} s; increase {STOP_WAIT}")


if __name__ == "__main__":
    main()
