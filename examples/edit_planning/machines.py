"""A machine for each rollout: a checkout of its own, opened at its session's start and removed at its end.

Opened and closed machines are counted; several threads may call, and none waits for another rollout's checkout unless
it needs the same.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Final

from examples.common.sessions import IDLE_S, Locks, Sessions
from examples.edit_planning.repositories import Repositories

MAX_OPEN: Final = 16
MAX_TEMPLATES: Final = 16


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
        self._folder, self._max_templates = folder, max_templates
        self._numbers = count(1)
        self._sessions = Sessions[Path](max_open, lambda made: shutil.rmtree(made, ignore_errors=True), idle_s, clock)
        self._templates: OrderedDict[tuple[str, str], Path] = OrderedDict()
        # This lock guards the templates; nothing slow runs under it.
        self._lock = Lock()
        # A lock for each template: its copies wait until it is made, and its removal for them.
        self._template_locks = Locks()

    def open(self, trace_id: str, repository: str, commit: str) -> None:
        """Open a machine with a checkout of the commit's parent; nothing happens if the rollout has one.

        Raises:
            Full: `max_open` are open.
            Unknown: there is no such commit.
            CalledProcessError: git failed, or took too long.
        """
        self._sessions.open(trace_id, lambda: self._copied(repository, commit))
        self._remove_old_templates()

    def close(self, trace_id: str) -> bool:
        """Close a rollout's machine; returns False if it has none, as when its end arrives twice."""
        return self._sessions.close(trace_id)

    def close_idle(self) -> None:
        self._sessions.close_idle()

    def close_all(self) -> None:
        """For the end of a server, after its last start."""
        self._sessions.close_all()
        self._templates.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def checkout(self, trace_id: str) -> Path:
        """The folder of a rollout's machine, which counts as used.

        Raises:
            Gone: it has none.
        """
        return self._sessions.get(trace_id)

    def counts(self) -> dict[str, int]:
        """Counts, and how many are `open` now."""
        return self._sessions.counts()

    def _copied(self, repository: str, commit: str) -> Path:
        """Copy a checkout; the latest ones are kept as templates, since a row has several rollouts."""
        key = (repository, commit)
        with self._template_locks.of(*key):
            with self._lock:
                folder = self._folder / "open" / str(next(self._numbers))
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
            try:
                shutil.copytree(template, folder, copy_function=_copy_file)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        return folder

    def _remove_old_templates(self) -> None:
        while True:
            with self._lock:
                if len(self._templates) <= self._max_templates:
                    return
                key, oldest = self._templates.popitem(last=False)
            with self._template_locks.of(
                *key
            ):  # nobody copies it any more; who needs it again makes it again elsewhere
                shutil.rmtree(oldest, ignore_errors=True)


def _copy_file(source: str, target: str) -> None:
    """Copies share their history: git never changes the file that has it."""
    (os.link if "/.git/objects/" in source else shutil.copy2)(source, target)
