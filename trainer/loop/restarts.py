"""Restarts of a lost learner: a few at each step, with pauses that grow; a crash loop ends with its first cause."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agent_rft.errors import LearnerFailed
from agent_rft.events import LearnerRestarted
from agent_rft.protocols import EventSink

T = TypeVar("T")
PAUSES_S = (1.0, 10.0, 60.0)
"""The pause before each restart that is allowed at one step: a node that went away may need a minute to be replaced."""


class Restarts:
    """The budget of one loop.

    `recover` starts the learner again and gives it the state that it had; `step` returns the number of steps that are
    done; `sleep` takes seconds.
    """

    def __init__(
        self,
        sink: EventSink,
        recover: Callable[[], Awaitable[None]],
        step: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._recover = recover
        self._current_step = step
        self._is_lost = False
        self._sink = sink
        self._sleep = sleep
        self._step = -1
        self._failures: list[LearnerFailed] = []

    async def retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`. If a rank is lost, the learner recovers, and `work` is done again.

        Raises:
            LearnerFailed: The budget of a step is spent; the message has the first cause.
        """
        while True:
            try:
                if self._is_lost:
                    await self._recover()
                    self._is_lost = False
                return await work()
            except LearnerFailed as failure:
                self._is_lost = True
                await self._allow(failure, self._current_step())

    async def _allow(self, failure: LearnerFailed, step: int) -> None:
        """Wait before the next restart, after a failure when `step` steps were done."""
        if step > self._step:  # a supervised job goes back to its checkpoint: what it repeats does not count
            self._step, self._failures = step, []
        self._failures.append(failure)
        first, times = self._failures[0], len(self._failures)
        if times > len(PAUSES_S):
            what = f"the learner failed {times} times after step {step}; the first time:"
            raise LearnerFailed(f"{what} {first.message}", public=f"{what} {first.public}") from first
        self._sink.emit(LearnerRestarted(cause=failure.message, times=times, error_type=type(failure).__name__))
        await self._sleep(PAUSES_S[times - 1])
