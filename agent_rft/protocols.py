"""The protocols that the loop depends on: `cluster/run/job_run.py` passes actors, tests pass fakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from agent_rft.events import Event
from agent_rft.run_events import RunEvent
from agent_rft.types import Converted, Group, GroupRequest, StepReport, SyncReport, TrainSequence

Emit = Callable[[Event], None]
"""Reports an event; returns at once and never raises."""


class Rollouts(Protocol):
    """Samples and grades rollouts, and gives the engines new weights."""

    async def sample(self, request: GroupRequest) -> Group:
        """Run and grade `request.size` rollouts. Failed ones are in `Group.discarded`.

        Raises:
            UserError: An endpoint refuses access, so that nothing can be graded.
        """

    async def counts(self) -> dict[str, float]:
        """Totals since the start, by metric name.

        They are outcomes of rollouts (`account/...`) and statistics of the endpoints that they called (`endpoint/...`).
        """

    async def publish(self, version: int) -> SyncReport:
        """Send the learner's weights to all engines as `version`. Returns when every engine samples with them."""


class Checkpointable(Protocol):
    """The weights and all training state, which a checkpoint holds."""

    async def snapshot(self) -> None:
        """Copy to host memory all that `write` writes, in place of the snapshot before; then training may go on."""

    async def write(self, folder: Path) -> None:
        """Write the snapshot into an existing empty folder, and free it; training may go on meanwhile.

        The folder gets the model (Hugging Face format) and, in its subfolder `state`, what only `load` needs.

        Raises:
            OSError: The disk is full or read-only. The snapshot is kept.
        """

    async def load(self, folder: Path) -> Converted | None:
        """Restore weights, optimizer and schedule from a folder that `write` wrote.

        Returns what was converted, if the folder was written with another number of ranks, ZeRO stage or dtype.
        """

    async def restart(self) -> None:
        """Start again with the model that the job began with, after a call raised LearnerFailed."""


class Learner(Checkpointable, Protocol):
    """Updates the weights."""

    async def step(self, sequences: Sequence[TrainSequence], version: int) -> StepReport:
        """Train on one batch, from policy `version`; the loss is over all tokens of all `sequences`."""

    async def rest(self) -> None:
        """The learner is not needed until the next call: engines that share its devices have their turn."""

    async def check(self) -> None:
        """Returns at once, or raises LearnerFailed if the learner was lost since the last call."""


class EventSink(Protocol):
    """Receives what the loop reports. Calls return at once and never raise."""

    def emit(self, event: Event) -> None: ...

    def groups(self, name: str, groups: Sequence[Group]) -> None:
        """Store the rollouts of a step or an evaluation under this name."""


class Sink(Protocol):
    """Receives the redacted events of a run in order: a view, a store, a third-party tracker."""

    def event(self, event: RunEvent) -> None: ...

    def close(self) -> None:
        """Flush pending writes; no event follows."""
