"""Finds what processes left behind in /dev/shm, where tests that run in parallel have segments too."""

from __future__ import annotations

import re
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

import psutil

from agent_rft.actors.weights.shared_memory import PREFIX, SHM

GRACE_S = 10.0
"""Time for processes that are ending, and for parallel tests that have just killed a process."""


def left_behind(before: Set[str] = frozenset()) -> set[str]:
    """Segments of engines that no living process has held for GRACE_S, except those that existed `before`."""
    deadline = time.monotonic() + GRACE_S
    left = unheld() - before
    while left and time.monotonic() < deadline:
        time.sleep(0.5)
        left &= unheld()
    return left


def unheld() -> set[str]:
    """Segments of engines that no living process holds now."""
    segments = {path.name for prefix in (PREFIX, "psm_") for path in SHM.glob(f"{prefix}*")}
    for pid in psutil.pids() if segments else ():
        with suppress(OSError):  # it has ended
            segments -= set(re.findall(rf"{SHM}/(\S+)", Path(f"/proc/{pid}/maps").read_text()))
            segments -= {file.readlink().name for file in Path(f"/proc/{pid}/fd").iterdir()}
    return segments
