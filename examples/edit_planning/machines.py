"""A machine for each rollout: a checkout of its own, opened at its session's start and removed at its end.

At most `max_open` are open. One that nobody has used for `idle_s` is closed, so a lost end costs a place for a bounded
time. Opened and closed machines are counted; several threads may call.
"""

from __future__ import annotations

import shutil
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Final

from examples.edit_planning.repositories import Repositories

MAX_OPEN: Final = 16
IDLE_S: Final = 3_600.0
"""As long as a rollout may wait: six times `limits.rollout_timeout_s`."""
MAX_TEMPLATES: Final = 16


class Full(Exception):
    """All places are taken."""


class Gone(LookupError):
    """The rollout has no machine: its session has ended, or was never opened."""


@dataclass(slots=True)
class Counts:
    """Since the start; `idle` are those of `closed` that were closed because nobody used them."""

    opened: int = 0
    closed: int = 0
    idle: int = 0
    refused: int = 0
    most_open: int = 0


@dataclass(slots=True)
class _Machine:
    folder: Path
    used: float


class Machines:
    def __init__(
        self,
        repositories: Repositories,
        folder: Path,
        max_open: int = MAX_OPEN,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` belongs to these machines alone."""
        self.repositories = repositories
        self._folder, self._max_open, self._idle_s, self._clock = folder, max_open, idle_s, clock
        self._numbers = count(1)
        self._open: dict[str, _Machine] = {}
        self._templates: OrderedDict[tuple[str, str], Path] = OrderedDict()
        self._counts = Counts()
        # One change at a time: an end waits for the start before it, and a repeated start finds the machine open.
        self._lock = Lock()

    def open(self, trace_id: str, repository: str, commit: str) -> None:
        """Open a machine with a checkout of the commit's parent; nothing happens if the rollout has one.

        Raises:
            Full: `max_open` are open.
            Unknown: there is no such commit.
        """
        with self._lock:
            self._close_idle()
            if trace_id in self._open:
                return
            if len(self._open) >= self._max_open:
                self._counts.refused += 1
                raise Full
            folder = self._folder / "open" / str(next(self._numbers))
            try:
                shutil.copytree(self._template(repository, commit), folder)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            self._open[trace_id] = _Machine(folder, self._clock())
            self._counts.opened += 1
            self._counts.most_open = max(self._counts.most_open, len(self._open))

    def close(self, trace_id: str) -> bool:
        """Close a rollout's machine; returns False if it has none, as when its end arrives twice."""
        with self._lock:
            return self._remove(trace_id)

    def close_idle(self) -> None:
        with self._lock:
            self._close_idle()

    def close_all(self) -> None:
        with self._lock:
            for trace_id in list(self._open):
                self._remove(trace_id)
            self._templates.clear()
            shutil.rmtree(self._folder, ignore_errors=True)

    def checkout(self, trace_id: str) -> Path:
        """The folder of a rollout's machine, which counts as used.

        Raises:
            Gone: it has none.
        """
        machine = self._open.get(trace_id)  # without the lock: a call need not wait for another rollout's checkout
        if machine is None:
            raise Gone("no machine is open for this rollout")
        machine.used = self._clock()
        return machine.folder

    def counts(self) -> dict[str, int]:
        """Counts, and how many are `open` now."""
        return asdict(self._counts) | {"open": len(self._open)}

    def _close_idle(self) -> None:
        last = self._clock() - self._idle_s
        for trace_id in [trace_id for trace_id, machine in self._open.items() if machine.used <= last]:
            self._counts.idle += self._remove(trace_id)

    def _remove(self, trace_id: str) -> bool:
        machine = self._open.pop(trace_id, None)
        if machine is None:
            return False
        shutil.rmtree(machine.folder, ignore_errors=True)
        self._counts.closed += 1
        return True

    def _template(self, repository: str, commit: str) -> Path:
        """A checkout to copy; the latest ones are kept, since a row has several rollouts."""
        key = (repository, commit)
        if key not in self._templates:
            folder = self._folder / "templates" / f"{repository}-{commit}"
            self.repositories.check_out(repository, commit, folder)
            self._templates[key] = folder
            if len(self._templates) > MAX_TEMPLATES:
                _, oldest = self._templates.popitem(last=False)
                shutil.rmtree(oldest, ignore_errors=True)
        self._templates.move_to_end(key)
        return self._templates[key]
