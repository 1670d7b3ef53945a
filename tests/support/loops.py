"""A reinforcement loop over fakes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from tests.support.builders import plan, task
from tests.support.fakes import FakeLearner, FakeRollouts, FakeSink
from trainer.loop.checkpoint import Checkpoints
from trainer.loop.journal import Journal
from trainer.loop.reinforcement import Loop, LoopConfig
from trainer.spec.job import AlgorithmSpec, CheckpointInterval
from trainer.types import GroupRequest


class Made:
    """A loop and its fakes."""

    def __init__(self, folder: Path, rollouts: FakeRollouts | None = None, staleness: int = 1, **changes: Any) -> None:
        self.rollouts = rollouts or FakeRollouts()
        self.learner = changes.pop("learner", FakeLearner())
        self.sink = FakeSink()
        self.checkpoints = Checkpoints(folder / "checkpoints", changes.pop("copies", None))
        self.journal = changes.pop("journal", None) or Journal(folder / "journal")
        interval = changes.pop("interval", CheckpointInterval())
        self.tasks = [task(str(i)) for i in range(changes.get("num_rows", 6))]
        validation = [task(f"v{i}") for i in range(3)] if changes.pop("validate", True) else []
        sleep, clock = changes.pop("sleep", asyncio.sleep), changes.pop("clock", time.monotonic)
        config = LoopConfig(plan(**changes), AlgorithmSpec(max_staleness=staleness), 7, 1.0, interval)
        self.loop = Loop(
            config,
            self.tasks,
            validation,
            self.rollouts,
            self.learner,
            self.checkpoints,
            self.journal,
            self.sink,
            sleep,
            clock,
        )

    @property
    def train_requests(self) -> list[tuple[int, GroupRequest]]:
        return [(version, request) for version, request in self.rollouts.requests if request.purpose == "train"]
