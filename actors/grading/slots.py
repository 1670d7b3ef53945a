"""The slots of trials: what starts a process or asks a model or an endpoint takes one, so a process runs few at a time.

All trial routes share the slots, and a grader takes as many as it has such parts: neither the shape of a grader nor the
number of samples gets past the limit. Who gets none waits, for a bounded time, in a queue of bounded length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from agent_rft.actors.graders.base import Grader
from agent_rft.actors.runtime.fair_slots import FairSlots
from agent_rft.types import Grade

WAIT_S = 120.0
"""How long a part of a trial may wait for a slot."""
MAX_WAITING = 1_000
SHARE = 0.75
"""Part of the slots, and of the queue, that one key may take: the rest is free for the others."""

Slot = Callable[[], AbstractAsyncContextManager[None]]
"""Waits for a slot and holds it."""


class TrialSlots(FairSlots):
    """The slots of trials; their keys are the ids of API keys."""

    def __init__(self, limit: int, *, max_waiting: int = MAX_WAITING, wait_s: float = WAIT_S) -> None:
        super().__init__(limit, share=SHARE, max_waiting=max_waiting, wait_s=wait_s)


class InSlot:
    """A grader whose grades each wait for a slot."""

    def __init__(self, grader: Grader, slot: Slot) -> None:
        self._grader = grader
        self._slot = slot

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        async with self._slot():
            return await self._grader.grade(sample, item, trace_id)

    async def close(self) -> None:
        await self._grader.close()


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Do the work to its end, also when this is cancelled meanwhile, which then takes effect."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class OncePerSlot:
    """Graders that each make one grade: what one started has ended before the slot is free again."""

    def __init__(self, make: Callable[[], Grader], slot: Slot) -> None:
        self._make = make
        self._slot = slot

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        async with self._slot():
            grader = self._make()
            try:
                return await grader.grade(sample, item, trace_id)
            finally:
                await _to_its_end(grader.close())

    async def close(self) -> None:
        """Do nothing: each grade has closed its own."""
