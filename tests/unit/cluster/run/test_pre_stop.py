from __future__ import annotations

import os
import subprocess
import sys

from agent_rft.cluster.ray_cluster.ray_session import free_ports, why_unreachable
from agent_rft.cluster.run import pre_stop
from tests.support.paths import ROOT


def test_a_hook_whose_head_is_gone_succeeds_at_once() -> None:
    """Otherwise each drained learner's pod gets the event FailedPreStopHook."""
    (port,) = free_ports(1)
    ended = subprocess.run(
        [sys.executable, "-m", pre_stop.__name__],
        cwd=ROOT,
        env=os.environ | {"RAY_ADDRESS": f"127.0.0.1:{port}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"cannot reach the cluster's head at 127.0.0.1:{port}: Connection refused\n"


def test_a_name_that_does_not_resolve_is_unreachable_and_rays_keywords_are_not_looked_up() -> None:
    assert why_unreachable("head.invalid:6379")
    assert why_unreachable("auto") is None
