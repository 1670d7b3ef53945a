"""Current stage of each rollout in a process and the time spent in it, for reports of stalls."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

MAX_PER_STAGE = 3

Stage = Literal["session start", "rendering", "sampling", "tool calls", "grading", "weight update"]


@dataclass(frozen=True, slots=True)
class WorkInProgress:
    """Work that an actor is doing, and its duration so far.

    `trace_id` is empty if the work belongs to no rollout. `stage` is a `Stage`, or the name of a learner method.
    `duration_s` is used instead of a start time, because the clocks of nodes differ.
    """

    trace_id: str
    stage: str
    duration_s: float

    def __str__(self) -> str:
        return " ".join([self.stage, *([self.trace_id] if self.trace_id else []), f"for {self.duration_s:.0f} s"])


class RolloutStages:
    """Current stages of one process's rollouts; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, tuple[str, float]] = {}

    def enter(self, trace_id: str, stage: Stage) -> None:
        """Record that a rollout enters `stage` and leaves its previous stage."""
        self._since[trace_id] = stage, self._clock()

    def leave(self, trace_id: str) -> None:
        """Record that a rollout has ended."""
        self._since.pop(trace_id, None)

    def list_longest(self) -> list[WorkInProgress]:
        """Return the rollouts that have been in their stage longest, at most MAX_PER_STAGE for each stage."""
        now = self._clock()
        stages: dict[str, list[WorkInProgress]] = defaultdict(list)
        for trace_id, (stage, since) in self._since.items():
            stages[stage].append(WorkInProgress(trace_id, stage, now - since))
        return [
            doing
            for stage_work in stages.values()
            for doing in sorted(stage_work, key=lambda doing: -doing.duration_s)[:MAX_PER_STAGE]
        ]
