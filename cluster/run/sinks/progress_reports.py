"""Progress events for the rollouts of the current step or evaluation, emitted every second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agent_rft.actors.rollout.live_counts import RolloutProgress
from agent_rft.events import Evaluated, RolloutsProgressed, StepDone, ZeroVarianceBatch
from agent_rft.loop_protocols import Emit
from agent_rft.spec.step_plan import StepPlan
from agent_rft.stored_events import RunEvent
from agent_rft.types import Purpose, Rollout

EVERY_S = 1.0
SHOWN_CALLS, CALL_CHARS, ANSWER_CHARS = 4, 40, 80
ReadNextBatchProgress = Callable[[], tuple[int, list[int]]]
"""Function that returns the number of finished groups in the next batch, and the indices of unfinished groups."""


class ProgressReports:
    """Sink that emits progress events between `start` and `close`. It resets the counts after a step or an evaluation.

    `totals` has the number of rollouts per training step, validation and test.
    """

    def __init__(
        self,
        plan: StepPlan,
        validation_rows: int,
        test_rows: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._group_size = plan.group_size
        self._sleep = sleep
        self._progress: RolloutProgress | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._read_next_batch: ReadNextBatchProgress = lambda: (0, [])
        self.totals: dict[Purpose, int] = {
            "train": plan.rollouts_per_step,
            "validation": validation_rows * plan.eval_samples,
            "test": test_rows * plan.eval_samples,
        }

    def start(self, progress: RolloutProgress, emit: Emit) -> None:
        """Start reporting the counts of `progress`."""
        self._progress = progress
        self._reporting = asyncio.create_task(self._report_repeatedly(progress, emit))

    def follow_loop(self, read_next_batch: ReadNextBatchProgress) -> None:
        """Report the progress of the next training batch. The function `read_next_batch` returns this progress."""
        self._read_next_batch = read_next_batch

    async def _report_repeatedly(self, progress: RolloutProgress, emit: Emit) -> None:
        while True:
            await self._sleep(EVERY_S)
            if progress.in_flight:
                emit(self._make_report(progress))

    def handle_event(self, event: RunEvent) -> None:
        if isinstance(event.event, StepDone | Evaluated | ZeroVarianceBatch) and self._progress is not None:
            self._progress.clear()

    def close(self) -> None:
        """Stop reporting."""
        if self._reporting is not None:
            self._reporting.cancel()

    def _make_report(self, progress: RolloutProgress) -> RolloutsProgressed:
        purpose = progress.purpose
        slowest_row, slowest_s = progress.slowest_attempt or ("", 0.0)
        return RolloutsProgressed(
            purpose=purpose,
            ended=self._count_ended(progress) if purpose == "train" else progress.num_ended_by_purpose[purpose],
            total=self.totals[purpose],
            in_flight=progress.in_flight,
            calls={tool: float(count) for tool, count in progress.calls.items()},
            errors={tool: float(count) for tool, count in progress.errors.items()},
            slowest_s=slowest_s,
            slowest_row=slowest_row,
            **({} if progress.newest_rollout is None else _describe_newest(progress.newest_rollout)),
        )

    def _count_ended(self, progress: RolloutProgress) -> int:
        """Return the number of rollouts of the next batch that have ended."""
        finished, others = self._read_next_batch()
        return finished * self._group_size + sum(progress.num_ended("train", index) for index in others)


def _describe_newest(rollout: Rollout) -> dict[str, Any]:
    return {
        "newest_trace": rollout.trace_id,
        "newest_row": rollout.row_id,
        "newest_grade": rollout.grade.value,
        "newest_calls": tuple(_shorten(f"{c.name} {c.arguments}", CALL_CHARS) for c in rollout.calls[:SHOWN_CALLS]),
        "newest_answer": _shorten(rollout.answer, ANSWER_CHARS),
    }


def _shorten(text: str, limit: int) -> str:
    line = " ".join(text[: 4 * limit].split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
