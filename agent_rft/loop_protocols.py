"""Protocols that the loop depends on: `cluster/run/job_run.py` passes actors, tests pass fakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from agent_rft.events import Event
from agent_rft.stored_events import RunEvent
from agent_rft.types import Group, GroupRequest, LayoutConversion, StepReport, SyncReport, TrainSegment

Emit = Callable[[Event], None]
"""Callback that reports an event. It returns immediately and never raises."""


class Rollouts(Protocol):
    """Interface to the engines and graders: samples and grades rollouts, and publishes new weights."""

    async def sample(self, request: GroupRequest) -> Group:
        """Run and grade `request.size` rollouts. Failed ones are in `Group.discarded`.

        Raises:
            UserError: An endpoint rejects the key, so that nothing can be graded.
        """

    async def get_counts(self) -> dict[str, float]:
        """Return totals since the start by metric name.

        The metrics are outcomes of rollouts (`rollout_attempts/...`) and statistics of the endpoints that they called
        (`endpoint/...`).
        """

    async def publish(self, version: int) -> SyncReport:
        """Send the learner's weights to all engines as `version`. Return when every engine samples with them."""


class Checkpointable(Protocol):
    """Holder of the weights and all training state, which checkpoints contain."""

    async def snapshot(self) -> None:
        """Copy the state that `write_snapshot` needs to host memory, replacing the previous snapshot.

        Training may continue afterwards.
        """

    async def write_snapshot(self, folder: Path) -> None:
        """Write the snapshot to an existing empty folder, and free it. Training may continue concurrently.

        The folder receives the model (Hugging Face format) and, in its subfolder `state`, the data that only `load`
        needs.

        Raises:
            OSError: The disk is full or read-only. The snapshot is kept.
        """

    async def load(self, folder: Path) -> LayoutConversion | None:
        """Restore weights, optimizer and schedule from a folder of `write_snapshot`.

        Return the conversion, if the folder was written with a different number of ranks, ZeRO stage or dtype.
        """

    async def restart(self) -> None:
        """Restart with the model that the job began with, after a call raised LearnerFailed."""


class Learner(Checkpointable, Protocol):
    """The part of a run that updates the weights."""

    async def step(self, sequences: Sequence[TrainSegment], version: int) -> StepReport:
        """Train on one batch, starting from policy `version`. The loss is over all tokens of all `sequences`."""

    async def release_devices(self) -> None:
        """Release shared devices to the engines until the next call."""

    async def check_alive(self) -> None:
        """Raise LearnerFailed if the learner was lost since the last call. Returns immediately."""


class EventSink(Protocol):
    """Receiver of the loop's events and groups. Calls return immediately and never raise."""

    def emit(self, event: Event) -> None: ...

    def emit_groups(self, name: str, groups: Sequence[Group]) -> None:
        """Store the rollouts of a step or an evaluation under this name."""


class Sink(Protocol):
    """Receiver of a run's redacted events in order: a view, a store, a third-party tracker."""

    def handle_event(self, event: RunEvent) -> None: ...

    def close(self) -> None:
        """Flush pending writes; no event follows."""
