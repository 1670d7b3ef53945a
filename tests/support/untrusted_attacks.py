"""Runs `tests/support/untrusted_code.py` as code under test of a grader, and prints the grades as one JSON object.

Called as `python -m tests.support.untrusted_attacks namespaces|bubblewrap [--plain]`.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import resource
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import psutil

from agent_rft.actors.graders.kinds.python_grader import PythonRunner
from agent_rft.actors.sandbox import seccomp
from agent_rft.actors.sandbox.sandbox_config import SandboxLimits, SandboxMethod
from agent_rft.spec.graders import PythonGrader
from agent_rft.spec.operator.operator_config import OperatorConfig
from tests.support.fakes_http import until
from tests.support.python_attacks import become_plain, outcome
from tests.support.sandboxes import CODE, COST

CALLS = {
    "process_vm_readv": (310, 270), "pidfd_getfd": (438, 438), "ptrace": (101, 117), "adjtimex": (159, 171),
    "unshare": (272, 97), "prctl": (157, 167), "memfd_create": (319, 279), "clone": (56, 220),
}  # fmt: skip
LIMITS = {"wall_s": 20.0, "cpu_s": 10.0, "memory_bytes": 192 << 20, "output_bytes": 10_000}
OWN_LIMITS: dict[str, dict[str, float]] = {
    "spins": {"cpu_s": 1.0},
    "burns_in_children": {"cpu_s": 1.6},
    "sleeps": {"wall_s": 1.0},
    "forks_for_ever": {"wall_s": 1.0},
}
SOURCE = """
import json
from agent_rft import run_untrusted

TIMED_OUT, OVER_MEMORY, KILLED = -1, -2, -3

def grade(sample, item):
    wanted = item["task"]["a"] + item["task"]["b"]
    run = run_untrusted(item["code"], json.dumps(item["task"]), limits=item["limits"])
    assert len(run.stdout) <= 10_000 and len(run.stderr) <= 10_000
    if run.timed_out:
        return TIMED_OUT
    if run.over_memory:
        return OVER_MEMORY
    if run.killed:
        return KILLED
    if run.stdout != f"{wanted}\\n" and run.stderr:
        raise AssertionError(run.stderr)
    return float(run.stdout == f"{wanted}\\n")
"""
HOSTILE = Path(__file__).with_name("untrusted_code.py").read_text()


async def run(method: SandboxMethod, attacks: list[str], task: dict[str, Any]) -> dict[str, Any]:
    """The grade of each attack, and how many processes it has left."""
    grader = PythonRunner(
        PythonGrader(type="python", source=SOURCE), "g", OperatorConfig(), sandbox_method=method,
        limits=SandboxLimits(memory_bytes=512 << 20), num_workers=1,
    )  # fmt: skip
    me, found = psutil.Process(), {}

    async def grade(name: str) -> dict[str, Any]:
        item = {"task": task, "limits": LIMITS | OWN_LIMITS.get(name, {}), "code": f"{HOSTILE}\nmain({name!r})"}
        return await outcome(grader, name, item)

    assert await grade("is_honest") == {"value": 1.0}
    num_before = len(me.children(recursive=True))
    for name in attacks:
        found[name] = await grade(name)
        found[name]["left"] = len(me.children(recursive=True)) - num_before
    await grader.close()
    await until(lambda: not me.children(recursive=True))
    return found


def main() -> None:
    method = cast(SandboxMethod, sys.argv[1])
    assert method != "none", "without a sandbox the attacks would harm the machine"
    if "--plain" in sys.argv and os.getuid() == 0:
        become_plain(CODE)
    column = seccomp.MACHINES.index(platform.machine())
    with tempfile.TemporaryDirectory() as folder, socket.socket() as inet:
        secret = Path(folder) / "secret"
        secret.write_text("secret")
        inet.bind(("127.0.0.1", 0))
        inet.listen()
        task = {
            "a": 2,
            "b": 3,
            "secret_file": str(secret),
            "folder": folder,
            "pid": os.getpid(),
            "port": inet.getsockname()[1],
            **{name: numbers[column] for name, numbers in CALLS.items()},
        }
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = asyncio.run(run(method, json.loads(os.environ["ATTACKS"]), task))
        assert secret.read_text() == "secret" and os.listdir(folder) == ["secret"]
    ours, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    found[COST] = {
        "cpu_s": sum(usage.ru_utime + usage.ru_stime for usage in (ours, theirs)),
        "grown_bytes": (ours.ru_maxrss - before_kib) << 10,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
