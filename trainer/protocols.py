"""The seams of the loop: `cluster/run/driver.py` hands in actors, tests hand in fakes of the same protocols."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from trainer.types import Group, GroupRequest, StepReport, SyncReport, TrainSequence

Level = Literal["info", "warn", "error"]


class Rollouts(Protocol):
    """Samples and grades."""

    async def sample(self, request: GroupRequest) -> Group:
        """Run `request.size` rollouts to their end. Failures come back as `Group.discarded`.

        Raises:
            UserError: an endpoint refuses us; nothing can be graded.
        """

    async def counts(self) -> dict[str, float]:
        """Since the start, by the names of the metrics: what became of rollouts (`account/...`), and how the endpoints
        did that they called (`endpoint/...`).
        """

    async def publish(self, version: int) -> SyncReport:
        """Bring the learner's weights to all engines as `version`. Returns when each of them samples with it."""


class Learner(Protocol):
    """Changes the weights."""

    async def step(self, sequences: Sequence[TrainSequence], version: int) -> StepReport:
        """One batch of updates on `sequences` (all tokens of all of them are one loss), from policy `version`."""

    async def save(self, folder: Path) -> None:
        """Write the model (Hugging Face form) and the state that `load` needs into an existing empty folder."""

    async def load(self, folder: Path) -> None:
        """Take weights, optimizer, schedule and random state from a folder written by `save`."""


class EventSink(Protocol):
    """Where the loop reports to. Calls return at once and never raise."""

    def event(self, level: Level, message: str, **data: Any) -> None: ...

    def step(self, metrics: dict[str, float]) -> None: ...

    def groups(self, name: str, groups: Sequence[Group]) -> None: ...
