"""Engines and a learner that take turns on the devices they share: while one of them computes, the other sleeps.

What sleeps has given its device's memory back, and keeps what it needs in the memory of its node. The learner takes its
turn by itself whenever it computes; it ends when the learner rests.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Sleeper(Protocol):
    """Engines or learner ranks, which are awake at first."""

    async def sleep(self) -> None:
        """Return when the memory of the devices is free."""

    async def wake(self) -> None:
        """Return when it is as before."""


class Turns:
    """Whose turn it is; the first is the learner's. If one of them fails to wake up, it is nobody's."""

    def __init__(self, engines: Sleeper, learner: Sleeper) -> None:
        self._engines = engines
        self._learner = learner
        self._awake: Sleeper | None = learner
        self._lock = asyncio.Lock()

    async def to_learner(self) -> None:
        """Give the learner its turn; does nothing if it has it."""
        await self._give(self._engines, self._learner)

    async def to_engines(self) -> None:
        """Give the engines their turn; does nothing if they have it."""
        await self._give(self._learner, self._engines)

    async def to_new_learner(self) -> None:
        """Give the turn to a learner whose processes are gone; new ones start awake."""
        async with self._lock:
            if self._awake is self._engines:
                await self._engines.sleep()
            self._awake = self._learner

    async def _give(self, before: Sleeper, after: Sleeper) -> None:
        async with self._lock:
            if self._awake is after:
                return
            if self._awake is before:
                await before.sleep()
            self._awake = None
            await after.wake()
            self._awake = after
