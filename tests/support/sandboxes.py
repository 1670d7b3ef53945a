"""Attacks of hostile graders on each sandbox that this machine has, run in parallel, once per process."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tests.support.paths import ROOT

BUBBLEWRAP = ["bubblewrap"] if shutil.which("bwrap") else []
USERS = ["as_root", "as_plain_user"] if os.getuid() == 0 else ["as_plain_user"]
SANDBOXES = [f"{method}-{user}" for method in ["namespaces", *BUBBLEWRAP] for user in USERS]
"""The sandboxes to test: root's only if the tests run as root, bubblewrap's only if it is installed."""
GRADERS, CODE = "tests.support.python_attacks", "tests.support.untrusted_attacks"
"""The modules that attack a sandbox: as a grader, and as code under test of a grader."""
COST = "cost"
"""The key of what all attacks together cost: processor seconds, and bytes by which the pool's process grew."""


@functools.cache
def attacked(attacks: tuple[str, ...], module: str = GRADERS) -> dict[str, Future[dict[str, Any]]]:
    """The outcomes of the attacks by sandbox; run in parallel, since they mostly wait for deadlines."""
    executor = ThreadPoolExecutor(len(SANDBOXES))
    return {sandbox: executor.submit(_outcomes, sandbox, attacks, module) for sandbox in SANDBOXES}


def _outcomes(sandbox: str, attacks: tuple[str, ...], module: str) -> dict[str, Any]:
    """The outcomes of all attacks on a sandbox, run in a separate process that has secrets."""
    method, user = sandbox.split("-")
    plain = ["--plain"] if user == "as_plain_user" else []
    command = [sys.executable, "-m", module, method, *plain]
    environment = os.environ | {"ATTACKS": json.dumps(attacks), "VERY_SECRET": "secret"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
