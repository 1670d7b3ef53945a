"""Protocols of the objects that the training loop calls.

`cluster/run/job_run.py` passes implementations that call actors; tests pass fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from agent_rft.events import Event
from agent_rft.stored_events import RunEvent
from agent_rft.types import Group, GroupRequest, LayoutConversion, StepReport, SyncReport, TrainSegment

Emit = Callable[[Event], None]
"""Callback that reports an event. It returns immediately and never raises."""


class RolloutService(Protocol):
    """Interface to the graders and to the engines, which sample rollouts and receive new weights."""

    async def sample(self, request: GroupRequest) -> Group:
        """Run and grade `request.size` rollouts of a task.

        The rollouts that failed are in `Group.discarded`.

        Raises:
            UserError: An endpoint rejects the key that the job sends, so no rollout can be graded.
        """

    async def get_counts(self) -> dict[str, float]:
        """Return totals since the start of the run, keyed by metric name.

        The metrics are outcomes of rollouts (`rollout_attempts/...`) and statistics of the endpoints that the rollouts
        called (`endpoint/...`).
        """

    async def has_outage(self) -> bool:
        """Return whether an endpoint seems to be down.

        This is the case if the circuit breaker of an endpoint is open, or if so many rollouts failed that new rollouts
        only start one at a time. The result does not change until another rollout calls the endpoint.
        """

    async def publish(self, version: int) -> SyncReport:
        """Send the learner's weights to all engines as policy version `version`.

        Return once every engine samples with these weights.
        """


class Checkpointable(Protocol):
    """Object whose model weights and training state can be saved to checkpoints and restored."""

    async def snapshot(self) -> None:
        """Copy the weights and the training state to host memory, replacing the previous snapshot.

        Training may continue while `write_snapshot` writes the copy.
        """

    async def write_snapshot(self, folder: Path) -> None:
        """Write the snapshot to `folder`, which exists and is empty, and free the snapshot's memory.

        Training may continue concurrently. The folder receives the model in Hugging Face format. Its subfolder `state`
        receives the data that only `load` needs.

        Raises:
            OSError: The disk is full or read-only. The snapshot is kept in memory.
        """

    async def load(self, folder: Path) -> LayoutConversion | None:
        """Restore weights, optimizer and schedule from a folder that `write_snapshot` wrote.

        If the folder was written with a different number of ranks, ZeRO stage or dtype, its state is converted, and the
        conversion is returned; otherwise the result is None.
        """

    async def restart(self) -> None:
        """Restart with the job's initial model, after another method raised LearnerFailed."""


class Learner(Checkpointable, Protocol):
    """Interface to the learner ranks, which compute the updates of the weights."""

    async def step(self, sequences: Sequence[TrainSegment], version: int) -> StepReport:
        """Train the weights of policy version `version` on one batch.

        The loss is averaged over the trained tokens of all `sequences` together.
        """

    async def release_devices(self) -> None:
        """Let the engines use the devices that they share with the learner, until the learner's next call."""

    async def check_alive(self) -> None:
        """Raise LearnerFailed if a learner rank was lost since the last call of this method. Returns immediately."""


class LoopEventSink(Protocol):
    """Receiver of the events and groups of the training loop. Its methods return immediately and never raise."""

    def emit(self, event: Event) -> None: ...

    def emit_groups(self, name: str, groups: Sequence[Group]) -> None:
        """Store `groups`, the rollouts of a step or an evaluation, under `name`."""


class Sink(Protocol):
    """Receiver of a run's events, such as a live view, a store or a third-party tracker.

    Events arrive in the order in which they were emitted. Secrets have already been removed from the events.
    """

    def handle_event(self, event: RunEvent) -> None: ...

    def close(self) -> None:
        """Write all buffered events. No event is passed to the sink after this call."""
