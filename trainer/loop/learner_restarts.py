"""Restarts of a lost learner: a few restarts per step, with growing pauses.

If the learner is lost again and again, the job ends with the step's first error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agent_rft.errors import LearnerFailed
from agent_rft.events import LearnerRestarted
from agent_rft.loop_protocols import LoopEventSink

T = TypeVar("T")
PAUSES_S = (1.0, 10.0, 60.0)
"""Seconds before the first, second and third restart at one step. Replacing a lost node may take a minute."""


class LearnerRestarts:
    """Restarts a lost learner for one training loop, up to a maximum number of times per step.

    `recover` starts the learner again and restores its state. `get_step` returns the number of completed steps. `sleep`
    is called with a number of seconds.
    """

    def __init__(
        self,
        sink: LoopEventSink,
        recover: Callable[[], Awaitable[None]],
        get_step: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._recover = recover
        self._current_step = get_step
        self._is_lost = False
        self._sink = sink
        self._sleep = sleep
        self._step = -1
        self._failures: list[LearnerFailed] = []

    async def retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Call `work` and return its result. If a rank is lost, recover the learner and call `work` again.

        Raises:
            LearnerFailed: All restarts of a step were used; the message contains the first error.
        """
        while True:
            try:
                if self._is_lost:
                    await self._recover()
                    self._is_lost = False
                return await work()
            except LearnerFailed as failure:
                self._is_lost = True
                await self._wait_or_raise(failure, self._current_step())

    async def _wait_or_raise(self, failure: LearnerFailed, step: int) -> None:
        """Wait before the next restart, or raise if no restart is left. `step` is the number of completed steps."""
        if step > self._step:  # steps that a supervised job repeats from its checkpoint do not reset it
            self._step, self._failures = step, []
        self._failures.append(failure)
        first, times = self._failures[0], len(self._failures)
        if times > len(PAUSES_S):
            what = f"the learner failed {times} times after step {step}; the first error was:"
            raise LearnerFailed(f"{what} {first.message}", public_message=f"{what} {first.public_message}") from first
        self._sink.emit(LearnerRestarted(cause=failure.message, times=times, error_type=type(failure).__name__))
        await self._sleep(PAUSES_S[times - 1])
