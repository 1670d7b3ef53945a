"""How often this process opens files, by Python's audit events."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

_counters: dict[Path, Counter[str]] = {}


@contextmanager
def opened_files(folder: Path) -> Iterator[Counter[str]]:
    """Count how often Python code opens each file in a folder, by its path in the folder."""
    _observe_files()
    counter: Counter[str] = Counter()
    _counters[folder] = counter
    try:
        yield counter
    finally:
        del _counters[folder]


@cache
def _observe_files() -> None:
    """Add the audit hook, which stays until the process ends."""
    sys.addaudithook(_count)


def _count(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _counters or isinstance(arguments[0], int):  # a file descriptor
        return
    path = Path(os.fsdecode(arguments[0]))
    for folder, counter in _counters.items():
        if path.is_relative_to(folder):
            counter[str(path.relative_to(folder))] += 1
