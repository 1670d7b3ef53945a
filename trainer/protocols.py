"""The seams of the loop: `cluster/run/driver.py` hands in actors, tests hand in fakes of the same protocols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from trainer.events import Event
from trainer.run_events import RunEvent
from trainer.types import Group, GroupRequest, StepReport, SyncReport, TrainSequence

Emit = Callable[[Event], None]
"""Reports an event; returns at once and never raises."""


class Rollouts(Protocol):
    """Samples and grades."""

    async def sample(self, request: GroupRequest) -> Group:
        """Run `request.size` rollouts to their end. Failures come back as `Group.discarded`.

        Raises:
            UserError: an endpoint refuses us; nothing can be graded.
        """

    async def counts(self) -> dict[str, float]:
        """The totals since the start, by the names of the metrics.

        What became of rollouts (`account/...`), and how the endpoints that they called did (`endpoint/...`).
        """

    async def publish(self, version: int) -> SyncReport:
        """Bring the learner's weights to all engines as `version`. Returns when each of them samples with it."""


class Checkpointable(Protocol):
    """Weights and all state that training them needs."""

    async def save(self, folder: Path) -> None:
        """Write the model (Hugging Face form) and the state that `load` needs into an existing empty folder."""

    async def load(self, folder: Path) -> None:
        """Take weights, optimizer, schedule and random state from a folder written by `save`."""


class Learner(Checkpointable, Protocol):
    """Changes the weights."""

    async def step(self, sequences: Sequence[TrainSequence], version: int) -> StepReport:
        """One batch of updates on `sequences` (all tokens of all of them are one loss), from policy `version`."""


class EventSink(Protocol):
    """Where the loop reports to. Calls return at once and never raise."""

    def emit(self, event: Event) -> None: ...

    def groups(self, name: str, groups: Sequence[Group]) -> None:
        """The rollouts of a step or an evaluation, which are kept under this name."""


class Sink(Protocol):
    """Reads the events of a run, after redaction and in their order: a view, a store, a tracker of a third party."""

    def event(self, event: RunEvent) -> None: ...

    def close(self) -> None:
        """Finish what is still to be written; no event follows."""
