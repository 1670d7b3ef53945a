"""Fakes that implement the protocols of the loop and the episode, for tests without engine and Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.rows import read_tasks
from trainer.types import (
    Discarded,
    Grade,
    Group,
    GroupRequest,
    Rollout,
    StepReport,
    SyncReport,
    Task,
    TrainSequence,
    Turn,
)


def task(name: str = "1", **item: Any) -> Task:
    messages = ({"role": "user", "content": f"question {name}"},)
    return Task(name, messages, (), {"messages": list(messages), **item})


def tasks_of(path: Path) -> list[Task]:
    """The rows of a data file, all of which must be valid."""
    tasks, problems = read_tasks(path, "training_file")
    assert not problems
    return tasks


def rollout(
    request: GroupRequest, sample: int = 0, grade: float = 1.0, version: int = 0, sampled: int = 3, **changes: Any
) -> Rollout:
    """A rollout of two prompt tokens and `sampled` sampled ones."""
    length = 2 + sampled
    mask = np.arange(length) >= 2
    values: dict[str, Any] = {
        "trace_id": f"trace_{request.purpose}_{request.index}_{sample}",
        "row_id": request.task.row_id,
        "epoch": request.epoch,
        "sample": sample,
        "attempt": request.attempt,
        "token_ids": np.arange(length, dtype=np.int32),
        "loss_mask": mask,
        "logprobs": np.where(mask, -0.5, 0.0).astype(np.float32),
        "versions": np.where(mask, version, -1).astype(np.int32),
        "turns": (Turn(2, length, "text", model_s=0.1),),
        "answer": "text",
        "finish": "answer",
        "grade": Grade(grade),
        "reward": grade,
    }
    return Rollout(**(values | changes))


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
        grades = self._grades(request)
        graded = tuple(rollout(request, i, g, version) for i, g in enumerate(grades) if g is not None)
        lost = tuple(
            Discarded("t", request.task.row_id, i, "tool_failed", "down") for i, g in enumerate(grades) if g is None
        )
        return Group(request, graded, lost)

    async def counts(self) -> dict[str, float]:
        return {"account/started": float(len(self.requests))}

    async def publish(self, version: int) -> SyncReport:
        self.version = version
        self.published.append(version)
        return SyncReport(version, 0.01, 0.02, 100)


class FakeLearner:
    """Records its calls; `report(step)` makes the reports, and so may say that an update was not applied."""

    def __init__(self, report: Callable[[int], StepReport] | None = None) -> None:
        self.batches: list[tuple[int, list[TrainSequence]]] = []
        self.saved: list[Path] = []
        self.loaded: list[Path] = []
        self._report = report or (lambda step: StepReport({"loss": 0.1, "trained_tokens": 10.0}, applied=True))

    async def step(self, sequences: Sequence[TrainSequence], version: int) -> StepReport:
        self.batches.append((version, list(sequences)))
        for _ in range(5):
            await asyncio.sleep(0)
        return self._report(len(self.batches))

    async def save(self, folder: Path) -> None:
        (folder / "model.safetensors").write_text("weights")
        self.saved.append(folder)

    async def load(self, folder: Path) -> None:
        self.loaded.append(folder)


class FakeSink:
    """Records all events, steps and groups."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.steps: list[dict[str, float]] = []
        self.kept: dict[str, list[Group]] = {}

    def event(self, level: str, message: str, **data: Any) -> None:
        self.events.append((level, message))

    def step(self, metrics: dict[str, float]) -> None:
        self.steps.append(metrics)

    def groups(self, name: str, groups: Sequence[Group]) -> None:
        self.kept[name] = list(groups)
