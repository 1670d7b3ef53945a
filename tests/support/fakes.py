"""The training loop's collaborators (rollouts, learner, sink) as fakes, for tests without an engine, a GPU or Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from agent_rft.errors import LearnerFailed
from agent_rft.events import Event, StepDone
from agent_rft.types import Group, GroupRequest, StepReport, SyncReport, TrainSegment
from tests.support.builders import group

E = TypeVar("E", bound=Event)


class FakeRollouts:
    """Returns each group after `delay(request)` steps of the event loop, with `grades(request)`; None discards."""

    def __init__(
        self,
        grades: Callable[[GroupRequest], Sequence[float | None]] | None = None,
        delay: Callable[[GroupRequest], int] = lambda request: 1,
    ) -> None:
        self.version = 0
        self.requests: list[tuple[int, GroupRequest]] = []
        self.in_flight = 0
        self.published: list[int] = []
        self.is_down = False
        self._grades = grades or (lambda request: [float(i % 2) for i in range(request.size)])
        self._delay = delay

    async def sample(self, request: GroupRequest) -> Group:
        version = self.version
        self.requests.append((version, request))
        self.in_flight += 1
        try:
            for _ in range(self._delay(request)):
                await asyncio.sleep(0)
        finally:
            self.in_flight -= 1
        return group(request, self._grades(request), version)

    async def get_counts(self) -> dict[str, float]:
        return {"rollout_attempts/started": float(len(self.requests))}

    async def has_outage(self) -> bool:
        return self.is_down

    async def publish(self, version: int) -> SyncReport:
        self.version = version
        self.published.append(version)
        return SyncReport(version, 0.01, 0.02, 100)


class FakeLearner:
    """Records its calls; `report(step)` makes the reports, and so may say that an update was not applied.

    Its weights are the list of updates that led to them, each by its version and the first tokens of its sequences.
    If `report` raises LearnerFailed, or `lose` was called, every call does until it is restarted.
    """

    def __init__(self, report: Callable[[int], StepReport] | None = None) -> None:
        self.batches: list[tuple[int, list[TrainSegment]]] = []
        self.weights: list[tuple[int, list[list[int]]]] = []
        self.saved: list[Path] = []
        self.loaded: list[Path] = []
        self.restarts = 0
        self._lost: LearnerFailed | None = None
        self._report = report or (lambda step: StepReport({"loss": 0.1, "trained_tokens": 10.0}, applied=True))

    async def step(self, sequences: Sequence[TrainSegment], version: int) -> StepReport:
        self.alive()
        self.batches.append((version, list(sequences)))
        for _ in range(5):
            await asyncio.sleep(0)
        try:
            report = self._report(len(self.batches))
        except LearnerFailed as failure:
            self.lose(failure)
            raise
        self.weights.append((version, [s.token_ids.tolist() for s in sequences]))
        return report

    async def check_alive(self) -> None:
        self.alive()

    async def release_devices(self) -> None:
        self.alive()

    async def snapshot(self) -> None:
        self.alive()
        self._snapshot = list(self.weights)

    async def write_snapshot(self, folder: Path) -> None:
        self.alive()
        (folder / "model.safetensors").write_text("weights")
        (folder / "state").mkdir(exist_ok=True)
        (folder / "state" / "weights.json").write_text(json.dumps(self._snapshot))
        self.saved.append(folder)

    async def load(self, folder: Path) -> None:
        self.alive()
        self.weights = [(version, rows) for version, rows in json.loads((folder / "state/weights.json").read_text())]
        self.loaded.append(folder)

    async def restart(self) -> None:
        self._lost, self.weights = None, []
        self.restarts += 1

    def lose(self, failure: LearnerFailed) -> None:
        self._lost = failure

    def alive(self) -> None:
        if self._lost is not None:
            raise self._lost


class FakeSink:
    """Remembers the events and rollouts that a loop reports."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.kept: dict[str, list[Group]] = {}

    @property
    def steps(self) -> list[dict[str, float]]:
        """The metrics of each step."""
        return [event.metrics for event in self.of(StepDone)]

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def emit_groups(self, name: str, groups: Sequence[Group]) -> None:
        self.kept[name] = list(groups)
