"""What processes left behind in /dev/shm, where tests that run beside this one have segments too."""

from __future__ import annotations

import re
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

import psutil

from actors.weights.shared_memory import PREFIX, SHM

GRACE_S = 10.0
"""For processes that are ending, and for another test that has just killed one of its own."""


def left_behind(before: Set[str] = frozenset()) -> set[str]:
    """Engines' segments that no living process has held for GRACE_S, without those in `before`."""
    deadline = time.monotonic() + GRACE_S
    left = unheld() - before
    while left and time.monotonic() < deadline:
        time.sleep(0.5)
        left &= unheld()
    return left


def unheld() -> set[str]:
    """Engines' segments that no living process currently holds."""
    there = {path.name for prefix in (PREFIX, "psm_") for path in SHM.glob(f"{prefix}*")}
    for pid in psutil.pids() if there else ():
        with suppress(OSError):  # it has ended
            there -= set(re.findall(rf"{SHM}/(\S+)", Path(f"/proc/{pid}/maps").read_text()))
            there -= {file.readlink().name for file in Path(f"/proc/{pid}/fd").iterdir()}
    return there
