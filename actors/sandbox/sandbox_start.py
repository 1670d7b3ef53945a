"""Startup of sandboxes. A sandbox uses namespaces that we create or, if this fails, the program bubblewrap.

Some systems, such as Ubuntu 24.04 and later with AppArmor, allow user namespaces only for listed programs. On these
systems, users other than root need bubblewrap. After the worker has dropped its privileges, it checks which protections
are effective. If one of the PROTECTIONS is missing, the start fails before the worker gets the grader's source. Without
a sandbox (`unsandboxed_python`), only the deadline and the limits of each process apply. docs/security.md has a table
of the protections of each method.
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
from agent_rft.actors.sandbox.sandbox_config import (
    HERE,
    PROTECTIONS,
    SandboxLimits,
    SandboxMethod,
    launch_config,
    python_path,
    runs_config,
    worker_config,
)
from agent_rft.actors.sandbox.untrusted_runner import MEMORY_EXIT
from agent_rft.errors import RftError, UserError

START_S = 60.0
"""Timeout for creating a sandbox and running the grader's module."""
NEEDED_LINUX = (5, 14)
"""First Linux version that counts processes per user namespace."""
MAX_STDERR_CHARS = 500
SANDBOX_FIX = (
    "do one of the following. (1) Allow user namespaces: set the sysctls user.max_user_namespaces (above 0) and "
    "kernel.unprivileged_userns_clone=1; in a container, use a seccomp profile that allows unshare and mount. (2) If "
    "AppArmor restricts user namespaces to listed programs (Ubuntu 24.04 and later), install bubblewrap (apt-get "
    "install bubblewrap). (3) Set unsandboxed_python: true in the operator's configuration; graders can then read and "
    "send everything that this user can"
)
TRY_AGAIN = "the machine seems overloaded; try again when it has free CPUs"


@dataclass(frozen=True, slots=True)
class SandboxReport:
    """Report on how sandboxes can be created on this machine.

    Attributes:
        method: The method that works, or None if this machine cannot create sandboxes.
        protections: Whether each protection is effective.
        failures: Error of each method that does not work.
        is_late: Whether a sandbox was not ready in time. Another attempt may succeed.
    """

    method: SandboxMethod | None
    protections: dict[str, bool] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    is_late: bool = False


class SandboxFailed(RftError):
    """A sandbox did not start, or lacks a protection. `is_late` is True if it was not ready in time."""

    def __init__(self, message: str, is_late: bool = False) -> None:
        super().__init__(message, is_late=is_late)
        self.is_late = is_late


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A sandbox whose worker waits for requests on `channel`; closing the channel kills the sandbox."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    protections: dict[str, bool]

    def end(self) -> int:
        """Kill the sandbox, wait until the launcher exits, and return the launcher's exit status."""
        self.channel.close()
        return _end(self.process)


def choose_sandbox_method(report: SandboxReport, unsandboxed: bool) -> SandboxMethod:
    """Choose how graders are sandboxed; "none" only if no sandbox can be created and the operator allows that.

    Raises:
        SandboxFailed: A sandbox was not ready in time. Another attempt may succeed.
        UserError: No sandbox can be created; the message names the reasons and the fix.
    """
    if report.method is not None:
        return report.method
    why = "; ".join(f"{method}: {reason}" for method, reason in report.failures.items())
    if report.is_late:
        raise SandboxFailed(f"no sandbox was ready in time ({why})", is_late=True)
    if unsandboxed:
        return "none"
    needed = "python graders need a sandbox, which cannot be created here"
    problem, public = f"{needed} ({why})", f"{needed}: {SANDBOX_FIX}"
    raise UserError(
        f"{problem}: {SANDBOX_FIX}", code="no_sandbox", problem=problem, fix=SANDBOX_FIX, public_message=public
    )


class SandboxReportCache:
    """Cache of the report on sandboxes on this machine. A failure is not cached, because it may be temporary."""

    def __init__(self, make: Callable[[], SandboxReport]) -> None:
        self._make = make
        self._cached: SandboxReport | None = None

    def get(self) -> SandboxReport:
        if self._cached is not None:
            return self._cached
        report = self._make()
        if report.method is not None:
            self._cached = report
        return report


def sandbox_report() -> SandboxReport:
    """Return the report of `probe_sandbox_methods` for this machine. It is cached once a method works."""
    return _REPORTS.get()


def probe_sandbox_methods(start: Callable[..., Sandbox]) -> SandboxReport:
    """Start a sandbox with each method until a method works, and return the report. Takes a fraction of a second."""
    failures: dict[str, str] = {}
    is_late = False
    methods: tuple[SandboxMethod, ...] = ("namespaces", "bubblewrap")
    for method in methods:
        try:
            sandbox = start("def grade(sample, item): return 0", method, SandboxLimits(), timeout_s=START_S, cpu_s=1)
        except SandboxFailed as error:
            failures[method] = error.message
            is_late = is_late or error.is_late
        else:
            sandbox.end()
            return SandboxReport(method, sandbox.protections, failures)
    return SandboxReport(None, {}, failures, is_late)


def start_sandbox(
    source: str, method: SandboxMethod, limits: SandboxLimits, *, timeout_s: float, cpu_s: int
) -> Sandbox:
    """Start a sandbox and run the module `source` in it; blocks. `cpu_s` limits the CPU seconds of each process.

    Raises:
        SandboxFailed: The sandbox was not ready within `timeout_s`, or it lacks a protection.
    """
    _check_needs(method)
    process, ours = start_launcher(
        {**launch_config(method, limits, "sandbox_worker.py"), "runs": runs_config(method, limits)}
    )
    try:
        deadline = time.monotonic() + timeout_s
        ours.settimeout(timeout_s)
        untrusted.send(ours, json.dumps({**worker_config(method, limits), "cpu_s": cpu_s}).encode())
        protections = untrusted.receive(ours, deadline)["protections"]
        failed = [name for name in PROTECTIONS if method != "none" and not protections.get(name)]
        if failed:
            raise SandboxFailed(f"the sandbox lacks protections: {', '.join(failed)}")
        untrusted.send(ours, source.encode())
        untrusted.receive(ours, deadline)
    except BaseException as error:  # on any error, so that no sandbox is left behind
        ours.close()
        output = read_last_output(process)
        if isinstance(error, TimeoutError):
            raise SandboxFailed(f"the grader's module was not loaded within {timeout_s:g} s", is_late=True) from None
        if isinstance(error, (OSError, EOFError, ValueError, KeyError)):
            memory = f"perhaps out of memory ({limits.memory_bytes >> 20} MiB)"
            raise SandboxFailed(output or f"the worker ended while the grader's module was loaded, {memory}") from None
        raise
    ours.settimeout(None)
    return Sandbox(process, ours, protections)


_REPORTS = SandboxReportCache(lambda: probe_sandbox_methods(start_sandbox))


def start_launcher(config: dict[str, Any]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the launcher; return its process and the socket to the first process of its sandbox."""
    ours, theirs = socket.socketpair()
    command = [python_path(), "-I", "-S", "-B", str(HERE / "sandbox_launcher.py"), json.dumps(config)]
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


def read_last_output(process: subprocess.Popen[bytes]) -> str:
    """Return the last lines that the launcher, bubblewrap or Python wrote to stderr."""
    assert process.stderr is not None
    try:
        _, output = process.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        _, output = process.communicate()
    status = "the sandbox exceeded its memory limit" if process.returncode == MEMORY_EXIT else ""
    lines = output.decode(errors="replace").strip().splitlines()
    return "; ".join(lines[-2:])[:MAX_STDERR_CHARS] if lines else status


def _check_needs(method: SandboxMethod) -> None:
    if sys.platform != "linux":
        raise SandboxFailed("sandboxes require Linux")
    if method == "none":
        return
    if not seccomp.is_architecture_supported():
        raise SandboxFailed(f"sandboxes do not support the architecture {platform.machine()}")
    if method == "bubblewrap" and shutil.which("bwrap") is None:
        raise SandboxFailed("bwrap is not installed")
    if tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2]) < NEEDED_LINUX:
        raise SandboxFailed(f"Linux {platform.release()} is older than {'.'.join(map(str, NEEDED_LINUX))}")
