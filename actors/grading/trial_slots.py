"""Slots that limit concurrent trials of heavy graders. Heavy graders start a process or call a model or an endpoint.

All API routes for trials share the slots, and each heavy part of a grader takes one slot. A grader with many parts, or
a request with many samples, can therefore not exceed the limit. The queue's length and the wait are limited, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from agent_rft.actors.endpoints.network.json_reader import read_json_for
from agent_rft.actors.graders.grader_protocol import Grader
from agent_rft.actors.runtime.fair_slots import FairSlots
from agent_rft.types import Grade

WAIT_S = 120.0
"""Maximum seconds that a trial waits for each slot that it needs."""
MAX_WAITING = 1_000
SHARE = 0.75
"""Maximum share of the slots, and of the queue, for one API key. The rest stays free for other keys."""

Slot = Callable[[], AbstractAsyncContextManager[None]]
"""Function that returns a context manager. The context manager waits for a slot, and releases the slot on exit."""


class TrialSlots(FairSlots):
    """Slots for trials, shared fairly between API keys. `key` is the id of an API key."""

    def __init__(self, limit: int, *, max_waiting: int = MAX_WAITING, wait_s: float = WAIT_S) -> None:
        super().__init__(limit, max_share_per_key=SHARE, max_waiting=max_waiting, wait_s=wait_s)

    @asynccontextmanager
    async def hold_slot(self, key: str, order: int = 0) -> AsyncIterator[None]:
        """Context manager that holds a slot for `key`.

        While the slot is held, calls of `read_json` count against the thread limit of `key`.

        Raises:
            NoFreeSlot: The queue is full, or no slot became free in time.
        """
        async with super().hold_slot(key, order):
            with read_json_for(key):
                yield


class SlottedGrader:
    """A grader that waits for a slot before each grade."""

    def __init__(self, grader: Grader, slot: Slot) -> None:
        self._grader = grader
        self._slot = slot

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        async with self._slot():
            return await self._grader.grade(sample, item, trace_id)

    async def close(self) -> None:
        await self._grader.close()


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Finish `work` even if this task is cancelled, then re-raise the cancellation."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class OneGradeGrader:
    """A grader that creates another grader for each grade, and closes that grader before releasing the slot."""

    def __init__(self, make: Callable[[], Grader], slot: Slot) -> None:
        self._make = make
        self._slot = slot

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        async with self._slot():
            grader = self._make()
            try:
                return await grader.grade(sample, item, trace_id)
            finally:
                await _finish(grader.close())

    async def close(self) -> None:
        """Do nothing, because each call of `grade` closes its own grader."""
