"""A machine for each rollout: a checkout of its own, opened at its session's start and removed at its end.

At most `max_open` are open. One that nobody has used for `idle_s` is closed, so a lost end costs a place for a bounded
time. Opened and closed machines are counted; several threads may call, and none waits for another rollout's checkout
unless it needs the same.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

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
    """Since the start; `idle` are those of `closed` that were closed because nobody used them.

    `most_open` has those that were about to open too, since these take places.
    """

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
        max_templates: int = MAX_TEMPLATES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` belongs to these machines alone."""
        self.repositories = repositories
        self._folder, self._max_open, self._idle_s, self._clock = folder, max_open, idle_s, clock
        self._max_templates = max_templates
        self._numbers = count(1)
        self._num_starting = 0
        self._open: dict[str, _Machine] = {}
        self._templates: OrderedDict[tuple[str, str], Path] = OrderedDict()
        self._counts = Counts()
        # This lock guards all that is above; nothing slow runs under it.
        self._lock = Lock()
        # A lock for each rollout: an end waits for the start before it, and a repeated start finds the machine open.
        # A lock for each template: its copies wait until it is made, and its removal for them.
        self._locks: WeakValueDictionary[tuple[str, ...], Lock] = WeakValueDictionary()

    def open(self, trace_id: str, repository: str, commit: str) -> None:
        """Open a machine with a checkout of the commit's parent; nothing happens if the rollout has one.

        Raises:
            Full: `max_open` are open.
            Unknown: there is no such commit.
            CalledProcessError: git failed, or took too long.
        """
        self.close_idle()
        with self._lock_of(trace_id):
            with self._lock:
                if trace_id in self._open:
                    return
                if len(self._open) + self._num_starting >= self._max_open:
                    self._counts.refused += 1
                    raise Full
                self._num_starting += 1
                self._counts.most_open = max(self._counts.most_open, len(self._open) + self._num_starting)
                folder = self._folder / "open" / str(next(self._numbers))
            try:
                self._copy(repository, commit, folder)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                with self._lock:
                    self._num_starting -= 1
                raise
            with self._lock:
                self._num_starting -= 1
                self._open[trace_id] = _Machine(folder, self._clock())
                self._counts.opened += 1
        self._remove_old_templates()

    def close(self, trace_id: str) -> bool:
        """Close a rollout's machine; returns False if it has none, as when its end arrives twice."""
        with self._lock_of(trace_id):
            return self._remove(trace_id)

    def close_idle(self) -> None:
        with self._lock:
            last = self._clock() - self._idle_s
            lost = [trace_id for trace_id, machine in self._open.items() if machine.used <= last]
            idle = [self._open.pop(trace_id) for trace_id in lost]
            self._counts.idle += len(idle)
            self._counts.closed += len(idle)
        for machine in idle:
            shutil.rmtree(machine.folder, ignore_errors=True)

    def close_all(self) -> None:
        """For the end of a server, after its last start."""
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

    def _lock_of(self, *key: str) -> Lock:
        """The lock of a rollout or a template, which lasts as long as somebody holds or awaits it."""
        with self._lock:
            return self._locks.setdefault(key, Lock())

    def _remove(self, trace_id: str) -> bool:
        with self._lock:
            machine = self._open.pop(trace_id, None)
            self._counts.closed += machine is not None
        if machine is None:
            return False
        shutil.rmtree(machine.folder, ignore_errors=True)
        return True

    def _copy(self, repository: str, commit: str, folder: Path) -> None:
        """Copy a checkout; the latest ones are kept as templates, since a row has several rollouts."""
        key = (repository, commit)
        with self._lock_of(*key):
            with self._lock:
                if (template := self._templates.get(key)) is not None:
                    self._templates.move_to_end(key)
                made = self._folder / "templates" / str(next(self._numbers))
            if template is None:
                try:
                    self.repositories.check_out(repository, commit, made)
                except BaseException:
                    shutil.rmtree(made, ignore_errors=True)
                    raise
                with self._lock:
                    template = self._templates[key] = made
            shutil.copytree(template, folder, copy_function=_copy_file)

    def _remove_old_templates(self) -> None:
        while True:
            with self._lock:
                if len(self._templates) <= self._max_templates:
                    return
                key, oldest = self._templates.popitem(last=False)
            with self._lock_of(*key):  # nobody copies it any more; who needs it again makes it again elsewhere
                shutil.rmtree(oldest, ignore_errors=True)


def _copy_file(source: str, target: str) -> None:
    """Copies share their history: git never changes the file that has it."""
    (os.link if "/.git/objects/" in source else shutil.copy2)(source, target)
