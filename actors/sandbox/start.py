"""Starts sandboxes: our own namespaces first, else with bubblewrap if it is installed and works, else not at all.

bubblewrap is for plain users to whom the system denies user namespaces, except in programs that it knows (AppArmor on
Ubuntu 24.04 and later). A missing protection is an error, never a weaker sandbox: after giving up its privileges, the
worker checks which protections are effective, and all of PROTECTIONS must be before the grader's source is sent to it.
Without a sandbox (`unsandboxed_python`) there are only the deadline and the limits of each process. What holds in which
way is in the table of docs/security.md.
"""

from __future__ import annotations

import json
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent_rft import untrusted
from agent_rft.actors.sandbox import seccomp
from agent_rft.actors.sandbox.runner import MEMORY_EXIT
from agent_rft.actors.sandbox.sandbox_config import (
    HERE,
    PROTECTIONS,
    SandboxLimits,
    Way,
    launch_config,
    python_path,
    runs_config,
    worker_config,
)
from agent_rft.errors import RftError, UserError

START_S = 60.0
"""Timeout for creating a sandbox and running the grader's module."""
NEEDED_LINUX = (5, 14)
"""The first version that counts processes per user namespace (mount_setattr needs 5.12)."""
MAX_STDERR_CHARS = 500
REMEDY = (
    "allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1; in a container, a "
    "seccomp profile that allows unshare and mount), or, where AppArmor allows them to known programs only (Ubuntu "
    "24.04 and later), install bubblewrap (apt-get install bubblewrap), or set unsandboxed_python: true in the "
    "operator's configuration, which lets graders read and send whatever this user can"
)
TRY_AGAIN = "the machine seems overloaded: try again when it has processors free"


@dataclass(frozen=True, slots=True)
class SandboxReport:
    """How sandboxes can be created on this machine.

    `way` is None if they cannot; `holds` says which protections are effective; `missing` says why ways do not work;
    `late`, that one of these was not ready in time: it may work at the next try.
    """

    way: Way | None
    holds: dict[str, bool] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    late: bool = False


class SandboxFailed(RftError):
    """A sandbox did not start, or lacks a protection; `late` says that it was not ready in time."""

    def __init__(self, message: str, late: bool = False) -> None:
        super().__init__(message, late=late)
        self.late = late


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A sandbox whose worker waits for requests on `channel`; closing the channel kills it."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    holds: dict[str, bool]

    def end(self) -> int:
        """Kill it and wait for its end; returns the launcher's exit status."""
        self.channel.close()
        return _end(self.process)


def choose_way(report: SandboxReport, unsandboxed: bool) -> Way:
    """How graders are sandboxed; "none" only if there is no other way and the operator allows it.

    Raises:
        SandboxFailed: a sandbox was only late, so there may be a way.
        UserError: there is no way; the message says what is missing and what to do.
    """
    if report.way is not None:
        return report.way
    why = "; ".join(f"{way}: {reason}" for way, reason in report.missing.items())
    if report.late:
        raise SandboxFailed(f"no sandbox was ready in time ({why})", late=True)
    if unsandboxed:
        return "none"
    needed = "python graders need a sandbox, which cannot be created here"
    problem, public = f"{needed} ({why})", f"{needed}: {REMEDY}"
    raise UserError(f"{problem}: {REMEDY}", code="no_sandbox", problem=problem, remedy=REMEDY, public=public)


class Reports:
    """The report of this machine, kept once it has a way; a failure is not, since it may be one of the moment."""

    def __init__(self, make: Callable[[], SandboxReport]) -> None:
        self._make = make
        self._kept: SandboxReport | None = None

    def get(self) -> SandboxReport:
        if self._kept is not None:
            return self._kept
        report = self._make()
        if report.way is not None:
            self._kept = report
        return report


def sandbox_report() -> SandboxReport:
    """How sandboxes are created here; the first time, or while there is no way, by `try_ways`."""
    return _REPORTS.get()


def try_ways(start: Callable[..., Sandbox]) -> SandboxReport:
    """Try the ways in order by starting a sandbox; takes a fraction of a second."""
    missing: dict[str, str] = {}
    late = False
    ways: tuple[Way, ...] = ("namespaces", "bubblewrap")
    for way in ways:
        try:
            sandbox = start("def grade(sample, item): return 0", way, SandboxLimits(), timeout_s=START_S, cpu_s=1)
        except SandboxFailed as error:
            missing[way] = error.message
            late = late or error.late
        else:
            sandbox.end()
            return SandboxReport(way, sandbox.holds, missing)
    return SandboxReport(None, {}, missing, late)


def start(source: str, way: Way, limits: SandboxLimits, *, timeout_s: float, cpu_s: int) -> Sandbox:
    """Start a sandbox and run the module `source` in it; blocks. `cpu_s` limits each process of a grade.

    Raises:
        SandboxFailed: it was not ready within `timeout_s`, or lacks a protection.
    """
    _check_needs(way)
    process, ours = launch({**launch_config(way, limits, "worker.py"), "runs": runs_config(way, limits)})
    try:
        deadline = time.monotonic() + timeout_s
        ours.settimeout(timeout_s)
        untrusted.send(ours, json.dumps({**worker_config(way, limits), "cpu_s": cpu_s}).encode())
        holds = untrusted.receive(ours, deadline)["holds"]
        failed = [name for name in PROTECTIONS if way != "none" and not holds.get(name)]
        if failed:
            raise SandboxFailed(f"the sandbox lacks protections: {', '.join(failed)}")
        untrusted.send(ours, source.encode())
        untrusted.receive(ours, deadline)
    except BaseException as error:  # on any error, so that no sandbox is left behind
        ours.close()
        output = last_output(process)
        if isinstance(error, TimeoutError):
            raise SandboxFailed(f"the grader's module was not loaded within {timeout_s:g} s", late=True) from None
        if isinstance(error, (OSError, EOFError, ValueError, KeyError)):
            memory = f"perhaps out of memory ({limits.memory_bytes >> 20} MiB)"
            raise SandboxFailed(output or f"the worker ended while the grader's module was loaded, {memory}") from None
        raise
    ours.settimeout(None)
    return Sandbox(process, ours, holds)


_REPORTS = Reports(lambda: try_ways(start))


def launch(config: dict[str, Any]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the launcher; returns its process and the socket to the first process of its sandbox."""
    ours, theirs = socket.socketpair()
    command = [python_path(), "-I", "-S", "-B", str(HERE / "launcher.py"), json.dumps(config)]
    with theirs:
        process = subprocess.Popen(
            command,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            start_new_session=True,
        )
    return process, ours


def _end(process: subprocess.Popen[bytes]) -> int:
    if process.stderr is not None:
        process.stderr.close()
    try:
        return process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()  # the kernel then kills its worker
        return process.wait()


def last_output(process: subprocess.Popen[bytes]) -> str:
    """The last lines that launcher, bubblewrap or Python wrote to stderr."""
    assert process.stderr is not None
    try:
        _, output = process.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        _, output = process.communicate()
    status = "it used more memory than its limit" if process.returncode == MEMORY_EXIT else ""
    lines = output.decode(errors="replace").strip().splitlines()
    return "; ".join(lines[-2:])[:MAX_STDERR_CHARS] if lines else status


def _check_needs(way: Way) -> None:
    if sys.platform != "linux":
        raise SandboxFailed("not Linux")
    if way == "none":
        return
    if not seccomp.machine_is_known():
        raise SandboxFailed(f"no list of system calls for machine {platform.machine()}")
    if way == "bubblewrap" and shutil.which("bwrap") is None:
        raise SandboxFailed("bwrap is not installed")
    if tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2]) < NEEDED_LINUX:
        raise SandboxFailed(f"Linux {platform.release()} is older than {'.'.join(map(str, NEEDED_LINUX))}")
