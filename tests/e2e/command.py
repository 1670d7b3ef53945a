"""Runs `agent-rft` as a user does, and finds what it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from tests.support.paths import LEDGER

CONFIG = LEDGER / "agent-rft.yaml"
AGENT_RFT = str(Path(sys.executable).with_name("agent-rft"))
MARK = "AGENT_RFT_TEST"
"""A variable in the environment of all that a test starts: what has it at the end was left behind."""
GRACE_S = 10.0
"""vLLM's processes need a second to notice that their parent is gone."""


def run(*arguments: str | Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """`agent-rft` with these arguments, to its end; standard error goes where standard output goes."""
    return subprocess.run(
        [AGENT_RFT, *map(str, arguments)],
        env=marked(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def marked(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, MARK: str(os.getpid()), "AGENT_RFT_CONFIG": str(CONFIG)}


def processes() -> Iterator[psutil.Process]:
    """Living processes that this test process has started by way of `marked`, and theirs."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(os.getpid()) and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.Error:
            continue  # gone meanwhile, or not ours to look at


def processes_left() -> list[str]:
    """Names of those that are still there after a while."""
    deadline = time.monotonic() + GRACE_S
    while (left := list(processes())) and time.monotonic() < deadline:
        time.sleep(0.5)
    return [_name(process) for process in left]


def kill(name: str) -> None:
    """Kill -9 the process of this name."""
    (found,) = [process for process in processes() if name in _name(process)]
    found.kill()


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:100]
    except psutil.Error:
        return ""
