"""Finds the processes that a test started, while some of them are ending."""

from __future__ import annotations

from contextlib import suppress

import psutil


def our_processes(name: str) -> list[psutil.Process]:
    """This process's living descendants with `name` in their command line. A zombie counts as ended."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended, or is a zombie (a subclass)
            if name in " ".join(process.cmdline()):
                found.append(process)
    return found
