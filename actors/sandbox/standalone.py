"""Runs of untrusted code for processes outside a sandbox, such as a user's server. Each run gets a new sandbox.

A run ends when this process closes the connection: the launcher then kills everything in the sandbox.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time

from agent_rft import untrusted
from agent_rft.actors.sandbox import untrusted_runner
from agent_rft.actors.sandbox.sandbox_config import RUN_LIMITS, runs_config
from agent_rft.actors.sandbox.sandbox_start import TRY_AGAIN, SandboxReport, last_output, launch, sandbox_report


def run_alone(request: bytes) -> bytes:
    """Run a request of `agent_rft.untrusted`; return its outcome, or why it did not run. Blocks."""
    try:
        limits = untrusted_runner.checked(request, RUN_LIMITS.memory_bytes)
    except ValueError as error:
        return untrusted.pack({"refused": str(error)})
    try:
        return run_in(config_of(sandbox_report()), request, limits)
    except untrusted_runner.NotStarted as error:
        return untrusted.pack({"no_sandbox": str(error)})


def config_of(report: SandboxReport) -> untrusted_runner.RunnerConfig:
    """Return the configuration of runs on this machine.

    Raises:
        NotStarted: This machine cannot create a sandbox.
    """
    config = runs_config(report.way, RUN_LIMITS) if report.way else None
    if config is None:
        why = "; ".join(f"{way}: {reason}" for way, reason in report.missing.items())
        fix = TRY_AGAIN if report.late else "allow user namespaces, or install bubblewrap"
        raise untrusted_runner.NotStarted(f"{why}: {fix}")
    return config


def run_in(config: untrusted_runner.RunnerConfig, request: bytes, limits: dict[str, float]) -> bytes:
    """Run a request in a new sandbox and return its outcome.

    Raises:
        NotStarted: The sandbox did not start, or it lacks a protection.
    """
    launcher, worker = untrusted_runner.of_one_run(config, limits)
    process, channel = launch(launcher)
    began: float | None = None
    message: bytes | None = None
    try:
        untrusted.send(channel, json.dumps(worker).encode())
        untrusted_runner.check_holds(config, untrusted.receive(channel, time.monotonic() + untrusted_runner.START_S))
        began = time.monotonic()
        untrusted.send(channel, request)
        deadline = began + limits["wall_s"] + untrusted_runner.GRACE_S
        message = untrusted.receive_bytes(channel, deadline, untrusted_runner.MAX_OUTCOME_BYTES)
    except (OSError, EOFError, ValueError):
        pass  # the sandbox was killed, or did not start
    finally:
        channel.close()  # ends the launcher
        status, usage = _wait(process)
        output = last_output(process)
    if began is None:
        raise untrusted_runner.NotStarted(output or "the sandbox ended before the code was run")
    return untrusted_runner.answer(message, status == untrusted_runner.MEMORY_EXIT, limits, usage, began)


def _wait(process: subprocess.Popen[bytes]) -> tuple[int | None, resource.struct_rusage]:
    """Wait for the launcher to end; return its exit status and the resource usage of its sandbox.

    Returns None and zeros if this process ignores SIGCHLD or reaps all its children, as some servers do.
    """
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except ChildProcessError:
        return None, resource.struct_rusage((0,) * 16)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage
