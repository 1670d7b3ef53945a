"""Runs `agent-rft` as a user does, and finds processes that it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from agent_rft.rows.ownership import SILENCE_VARIABLE
from tests.support.paths import ROOT

CONFIG = ROOT / "tests" / "support" / "cluster.yaml"
"""The configuration for commands on a cluster that they do not start themselves."""
AGENT_RFT = str(Path(sys.executable).with_name("agent-rft"))
MARK = "AGENT_RFT_TEST"
"""An environment variable of every process that a test starts: those that run after it were left behind."""
GRACE_S = 10.0
"""vLLM's processes need a second to notice that their parent has ended."""


def run(*arguments: str | Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs `agent-rft` with these arguments to its end; standard error goes to standard output."""
    return subprocess.run(
        [AGENT_RFT, *map(str, arguments)],
        env=marked(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def marked(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that `processes` finds, without an operator configuration from outside.

    One that goes on with the folder of a killed one waits only 3 s for a sign of it.
    """
    own = {name: value for name, value in environment.items() if name != "AGENT_RFT_CONFIG"}
    return {SILENCE_VARIABLE: "3"} | own | {MARK: str(os.getpid())}


def processes() -> Iterator[psutil.Process]:
    """Yields the live processes that this test process started with `marked`, and their descendants."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(os.getpid()) and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.Error:
            continue  # it has ended, or belongs to another user


def processes_left() -> list[str]:
    """Returns the command lines of the processes that still run after GRACE_S."""
    deadline = time.monotonic() + GRACE_S
    while (left := list(processes())) and time.monotonic() < deadline:
        time.sleep(0.5)
    return [_name(process) for process in left]


def kill(name: str) -> None:
    """Kills the one process with this name by SIGKILL."""
    (found,) = [process for process in processes() if name in _name(process)]
    found.kill()


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:100]
    except psutil.Error:
        return ""
