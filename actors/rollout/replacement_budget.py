"""Budget of engine replacements from one weight update to the next: a crash loop ends the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from agent_rft.errors import Halted
from agent_rft.events import EngineUnstable
from agent_rft.protocols import Emit

REPLACEMENTS_PER_ENGINE = 3
UNSTABLE_AFTER = 3
"""Replacements in a row of one engine after which it is reported as unstable, and after as many again."""


class ReplacementBudget:
    """Counts replacements of the engines of one fleet, and replacements that were lost while they started.

    `total` counts since the start of the job. The limit applies to those since the last weight update.
    """

    def __init__(self, num_engines: int, emit: Emit) -> None:
        self._max = REPLACEMENTS_PER_ENGINE * num_engines
        self._emit = emit
        self.total = 0
        self._since_update = 0
        self._version = -1
        self._in_a_row: Counter[str] = Counter()
        self._updated: set[str] = set()  # the engines that took the last update and were not replaced since

    def count(self, engine: str, reason: str) -> None:
        """Count a replacement of `engine`. Emits EngineUnstable if it never works from one update to the next."""
        self.total += 1
        self._since_update += 1
        self._updated.discard(engine)
        self._in_a_row[engine] += 1
        if self._in_a_row[engine] % UNSTABLE_AFTER == 0:
            self._emit(EngineUnstable(engine=engine, times=self._in_a_row[engine], reason=reason))

    def weights_updated(self, version: int, engines: Collection[str]) -> None:
        """Count from zero again, since `engines` took the weights of `version`.

        Does nothing if no engine took them, or if the version was published before: a crash loop must not renew its
        own budget.
        """
        if not engines or version <= self._version:
            return
        self._version = version
        self._since_update = 0
        for stable in self._updated.intersection(engines):
            del self._in_a_row[stable]
        self._updated = set(engines)

    def check(self, engine: str, reason: str) -> None:
        """Check whether `engine` may be started again.

        Raises:
            Halted: There were too many replacements since the last weight update.
        """
        if self._since_update > self._max:
            what = (
                f"{engine} was replaced too often: engines were replaced {self._since_update} times since the last "
                f"weight update, and {self._max} are allowed"
            )
            raise Halted(f"{what}; the last reason: {reason}", public=what)
