"""Runs code under test for a process that is in no sandbox itself, such as a user's server; each run in a new sandbox.

A run ends with the connection to this process: the launcher then kills all that is in its sandbox.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time

from agent_rft import untrusted
from agent_rft.actors.sandbox import runner
from agent_rft.actors.sandbox.sandbox_config import RUN_LIMITS, runs_config
from agent_rft.actors.sandbox.start import TRY_AGAIN, SandboxReport, last_output, launch, sandbox_report


def run_alone(request: bytes) -> bytes:
    """The answer to a request of `agent_rft.untrusted`: the outcome of its run, or why there is none; blocks."""
    try:
        limits = runner.checked(request, RUN_LIMITS.memory_bytes)
    except ValueError as error:
        return untrusted.pack({"refused": str(error)})
    try:
        return run_in(config_of(sandbox_report()), request, limits)
    except runner.NotStarted as error:
        return untrusted.pack({"no_sandbox": str(error)})


def config_of(report: SandboxReport) -> runner.RunnerConfig:
    """How runs are sandboxed on this machine.

    Raises:
        NotStarted: there is no way.
    """
    config = runs_config(report.way, RUN_LIMITS) if report.way else None
    if config is None:
        why = "; ".join(f"{way}: {reason}" for way, reason in report.missing.items())
        remedy = TRY_AGAIN if report.late else "allow user namespaces, or install bubblewrap"
        raise runner.NotStarted(f"{why}: {remedy}")
    return config


def run_in(config: runner.RunnerConfig, request: bytes, limits: dict[str, float]) -> bytes:
    """The outcome of one run; raises NotStarted."""
    launcher, worker = runner.of_one_run(config, limits)
    process, channel = launch(launcher)
    began: float | None = None
    message: bytes | None = None
    try:
        untrusted.send(channel, json.dumps(worker).encode())
        runner.check_holds(config, untrusted.receive(channel, time.monotonic() + runner.START_S))
        began = time.monotonic()
        untrusted.send(channel, request)
        deadline = began + limits["wall_s"] + runner.GRACE_S
        message = untrusted.receive_bytes(channel, deadline, runner.MAX_OUTCOME_BYTES)
    except (OSError, EOFError, ValueError):
        pass  # it was killed, or did not start
    finally:
        channel.close()  # which ends the launcher
        status, usage = _ended(process)
        said = last_output(process)
    if began is None:
        raise runner.NotStarted(said or "the sandbox ended before the code was run")
    return runner.answer(message, status == runner.MEMORY_EXIT, limits, usage, began)


def _ended(process: subprocess.Popen[bytes]) -> tuple[int | None, resource.struct_rusage]:
    """The launcher's exit status, and what the processes of its sandbox used; waits for its end.

    None and zeros if this process ignores SIGCHLD or reaps all children itself, as some servers do: nobody knows then.
    """
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except ChildProcessError:
        return None, resource.struct_rusage((0,) * 16)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage
