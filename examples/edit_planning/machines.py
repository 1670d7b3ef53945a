"""A machine for each rollout: a checkout of its own, opened at its session's start and removed at its end.

Opened and closed machines are counted; several threads may call.
"""

from __future__ import annotations

import shutil
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

from examples.common.sessions import IDLE_S, Sessions
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` belongs to these machines alone."""
        self.repositories = repositories
        self._folder = folder
        self._numbers = count(1)
        self._sessions = Sessions[Path](max_open, lambda made: shutil.rmtree(made, ignore_errors=True), idle_s, clock)
        self._templates: OrderedDict[tuple[str, str], Path] = OrderedDict()

    def open(self, trace_id: str, repository: str, commit: str) -> None:
        """Open a machine with a checkout of the commit's parent; nothing happens if the rollout has one.

        Raises:
            Full: `max_open` are open.
            Unknown: there is no such commit.
        """
        self._sessions.open(trace_id, lambda: self._copied(repository, commit))

    def close(self, trace_id: str) -> bool:
        """Close a rollout's machine; returns False if it has none, as when its end arrives twice."""
        return self._sessions.close(trace_id)

    def close_idle(self) -> None:
        self._sessions.close_idle()

    def close_all(self) -> None:
        """Close all machines, at the end: nothing may be opened meanwhile."""
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
        folder = self._folder / "open" / str(next(self._numbers))
        try:
            shutil.copytree(self._template(repository, commit), folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

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
