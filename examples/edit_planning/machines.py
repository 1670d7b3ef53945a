"""Checkouts for rollouts: each rollout has its own, created when its session starts and removed when it ends.

The methods are thread-safe. No call waits for the checkout of another rollout, unless both need the same commit.
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
        """Create an empty set of checkouts. No other process may use `folder`."""
        self.repositories = repositories
        self._folder, self._max_templates = folder, max_templates
        self._numbers = count(1)
        self._sessions = Sessions[Path](max_open, lambda made: shutil.rmtree(made, ignore_errors=True), idle_s, clock)
        self._templates: OrderedDict[tuple[str, str], Path] = OrderedDict()
        # This lock guards the templates. No slow operation holds it.
        self._lock = Lock()
        # A lock per template: copies wait until the template exists, and its removal waits for its copies.
        self._template_locks = Locks()

    def open(self, trace_id: str, repository: str, commit: str) -> None:
        """Create a checkout of the commit's parent. If the rollout has a checkout, do nothing.

        Raises:
            Full: `max_open` checkouts exist.
            Unknown: The commit does not exist.
            CalledProcessError: git failed, or took too long.
        """
        self._sessions.open(trace_id, lambda: self._copied(repository, commit))
        self._remove_old_templates()

    def close(self, trace_id: str) -> bool:
        """Remove a rollout's checkout; return False if no checkout exists, for example after a repeated end request."""
        return self._sessions.close(trace_id)

    def close_idle(self) -> None:
        self._sessions.close_idle()

    def close_all(self) -> None:
        """Remove all checkouts at the end of the server, when no more checkouts are created."""
        self._sessions.close_all()
        self._templates.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def checkout(self, trace_id: str) -> Path:
        """Return the folder of a rollout's checkout, and record that it is used.

        Raises:
            Gone: The rollout has no checkout.
        """
        return self._sessions.get(trace_id)

    def counts(self) -> dict[str, int]:
        """Return the counts, and the number of checkouts that are `open` now."""
        return self._sessions.counts()

    def _copied(self, repository: str, commit: str) -> Path:
        """Return a copy of a checkout. The latest checkouts stay as templates, because a row has several rollouts."""
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
            ):  # no copy can start now; a later request creates a new template in another folder
                shutil.rmtree(oldest, ignore_errors=True)


def _copy_file(source: str, target: str) -> None:
    """Copy a file, or link it if it belongs to the history, because git never changes those files."""
    (os.link if "/.git/objects/" in source else shutil.copy2)(source, target)
