"""Sandboxed execution of untrusted code for any process, such as a user's server. Each run gets a new sandbox.

The launcher kills everything in the sandbox when the process that requested the run closes the connection.
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
from agent_rft.actors.sandbox.sandbox_start import (
    TRY_AGAIN,
    SandboxReport,
    read_last_output,
    sandbox_report,
    start_launcher,
)


def run_standalone(request: bytes) -> bytes:
    """Run the code in `request` in a new sandbox, and return the packed outcome or error. Blocks."""
    try:
        limits = untrusted_runner.check_request(request, RUN_LIMITS.memory_bytes)
    except ValueError as error:
        return untrusted.pack({"refused": str(error)})
    try:
        return run_in_sandbox(make_runner_config(sandbox_report()), request, limits)
    except untrusted_runner.NotStarted as error:
        return untrusted.pack({"no_sandbox": str(error)})


def make_runner_config(report: SandboxReport) -> untrusted_runner.RunnerConfig:
    """Return the configuration for running untrusted code in a sandbox on this machine.

    Raises:
        NotStarted: This machine cannot create a sandbox.
    """
    config = runs_config(report.method, RUN_LIMITS) if report.method else None
    if config is None:
        why = "; ".join(f"{method}: {reason}" for method, reason in report.failures.items())
        fix = TRY_AGAIN if report.is_late else "allow user namespaces, or install bubblewrap"
        raise untrusted_runner.NotStarted(f"{why}: {fix}")
    return config


def run_in_sandbox(config: untrusted_runner.RunnerConfig, request: bytes, limits: dict[str, float]) -> bytes:
    """Run a request in a new sandbox and return its outcome.

    Raises:
        NotStarted: The sandbox did not start, or it lacks a protection.
    """
    launcher, worker = untrusted_runner.make_run_configs(config, limits)
    process, channel = start_launcher(launcher)
    began: float | None = None
    message: bytes | None = None
    try:
        untrusted.send(channel, json.dumps(worker).encode())
        untrusted_runner.check_protections(
            config, untrusted.receive(channel, time.monotonic() + untrusted_runner.START_S)
        )
        began = time.monotonic()
        untrusted.send(channel, request)
        deadline = began + limits["wall_s"] + untrusted_runner.GRACE_S
        message = untrusted.receive_bytes(channel, deadline, untrusted_runner.MAX_OUTCOME_BYTES)
    except (OSError, EOFError, ValueError):
        pass  # the sandbox was killed, or did not start
    finally:
        channel.close()  # ends the launcher
        status, usage = _wait(process)
        output = read_last_output(process)
    if began is None:
        raise untrusted_runner.NotStarted(output or "the sandbox ended before the code was run")
    return untrusted_runner.build_answer(message, status == untrusted_runner.MEMORY_EXIT, limits, usage, began)


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
