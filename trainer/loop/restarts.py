"""Restarts of a lost learner: a few at each step, with pauses that grow; a crash loop ends with its first cause."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from trainer.errors import LearnerFailed
from trainer.events import LearnerRestarted
from trainer.protocols import EventSink

PAUSES_S = (1.0, 10.0, 60.0)
"""The pause before each restart that is allowed at one step: a node that went away may need a minute to be replaced."""


class Restarts:
    """The budget of one loop. `sleep` takes seconds."""

    def __init__(self, sink: EventSink, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._sink = sink
        self._sleep = sleep
        self._step = -1
        self._failures: list[LearnerFailed] = []

    async def allow(self, failure: LearnerFailed, step: int) -> None:
        """Wait before the next restart, after a failure when `step` steps were done.

        Raises:
            LearnerFailed: The budget of this step is spent; it says the first cause.
        """
        if step > self._step:  # a supervised job goes back to its checkpoint: what it repeats does not count
            self._step, self._failures = step, []
        self._failures.append(failure)
        first, times = self._failures[0], len(self._failures)
        if times > len(PAUSES_S):
            what = f"the learner failed {times} times after step {step}; the first time:"
            raise LearnerFailed(f"{what} {first.message}", public=f"{what} {first.public}") from first
        self._sink.emit(LearnerRestarted(cause=failure.message, times=times, error_type=type(failure).__name__))
        await self._sleep(PAUSES_S[times - 1])
