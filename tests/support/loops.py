"""A reinforcement loop over fakes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agent_rft.spec.job import AlgorithmSpec, CheckpointInterval
from agent_rft.trainer.loop.checkpoint import Checkpoints
from agent_rft.trainer.loop.journal import Journal
from agent_rft.trainer.loop.reinforcement import LoopConfig, ReinforcementLoop
from agent_rft.types import Group, GroupRequest, StepReport
from tests.support.builders import plan, task
from tests.support.fakes import FakeLearner, FakeRollouts, FakeSink


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
        check_every_s = changes.pop("check_every_s", 60.0)
        early_stop = changes.pop("early_stop", None)
        algorithm = AlgorithmSpec(
            max_staleness=staleness,
            eval_temperature=changes.pop("eval_temperature", None),
            advantage=changes.pop("advantage", "centered"),
        )
        config = LoopConfig(plan(**changes), algorithm, 7, 1.0, interval, early_stop)
        self.loop = ReinforcementLoop(
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
            check_every_s,
        )

    @property
    def train_requests(self) -> list[tuple[int, GroupRequest]]:
        return [(version, request) for version, request in self.rollouts.requests if request.purpose == "train"]


RUN = {"steps": 9, "n_epochs": 4, "eval_interval": 4}
EACH_STEP = CheckpointInterval(minutes=None, steps=1)
NEVER = CheckpointInterval(minutes=None, steps=None)


def some_without_signal(request: GroupRequest) -> list[float | None]:
    return [1.0] * 4 if request.index % 4 == 2 else [0.0, 1.0, None, 1.0]


class Numbered(FakeRollouts):
    """Rollouts that say which group they are of."""

    async def sample(self, request: GroupRequest) -> Group:
        made = await super().sample(request)
        tokens = np.full(5, request.index, dtype=np.int32)
        numbered = ((rollout, replace(rollout.segments[0], token_ids=tokens)) for rollout in made.rollouts)
        return replace(made, rollouts=tuple(replace(rollout, segments=(segment,)) for rollout, segment in numbered))


def made(folder: Path, seed: int = 0, **changes: Any) -> Made:
    delays = random.Random(seed)
    rollouts = changes.pop("rollouts", Numbered(some_without_signal, lambda request: delays.randrange(1, 40)))
    return Made(folder, rollouts, **RUN | {"validate": False} | changes)


def counting(sleeps: list[float]) -> Callable[[float], Any]:
    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    return sleep


class Killed(Exception):
    """Ends a run as a kill does."""


def killed_in(update: int) -> Callable[[int], StepReport]:
    def report(step: int) -> StepReport:
        if step == update:
            raise Killed
        return StepReport({}, applied=True)

    return report


async def undisturbed(folder: Path) -> list[tuple[int, list[list[int]]]]:
    run = made(folder)
    await run.loop.run()
    return run.learner.weights
