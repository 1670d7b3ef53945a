"""A learner rank's process: what it records about its calls."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest

from agent_rft.actors.learner.learner_group import LearnerGroup
from agent_rft.actors.learner.rank_process import RankProcess
from agent_rft.actors.runtime.telemetry.recorder import Recorder
from agent_rft.errors import LearnerFailed
from agent_rft.trainer.learner.rank_config import LearnerConfig
from agent_rft.trainer.model.micro_batches import WeightedSequence
from agent_rft.types import StepReport
from tests.support.fakes_http import until


class FakeRank:
    def step(self) -> float:
        return 0.5

    def write_snapshot(self, folder: Path) -> None:
        raise OSError(ENOSPC, "No space left on device")


def test_only_calls_that_succeed_are_counted() -> None:
    process: Any = RankProcess(metrics=None)
    process._rank, process._recorder = FakeRank(), Recorder()
    assert process.call("step") == 0.5
    assert process.write_snapshot(Path("folder")).errno == ENOSPC  # the rank lives on
    text = generate_latest(process._recorder.registry).decode()
    assert 'agent_rft_rank_seconds_count{call="step"} 1.0' in text
    assert 'call="write"' not in text
    assert process.heartbeat() == []


class FakeActor:
    """The actor of a rank: a step ends when `finish` is set, other calls wait for it."""

    def __init__(self) -> None:
        self.finish = asyncio.Event()
        self.steps = 0
        self.call = SimpleNamespace(remote=self._call)

    async def _call(self, method: str, *arguments: Any) -> Any:
        self.steps += method == "step"
        await self.finish.wait()
        return StepReport({}, True) if method == "step" else np.zeros(2, np.float32)


async def test_calls_wait_for_a_step_that_takes_longer_than_their_limit(tmp_path: Path) -> None:
    """A step of three tokens may take an hour here, any other call no time at all."""
    config = LearnerConfig(tmp_path, 1, 1e-3)
    group, actor = LearnerGroup(replace(config, collective_timeout_s=0.01, assumed_token_s=60.0), [{}]), FakeActor()
    group._actors = [actor]
    sequence = WeightedSequence(np.arange(3, dtype=np.int32), np.array([0, 1, 1], dtype=np.float32))
    step = asyncio.create_task(group.step([sequence], 0))
    await until(lambda: actor.steps == 1)
    logprobs = asyncio.create_task(group.logprobs(sequence.token_ids))
    assert not (await asyncio.wait({step, logprobs}, timeout=0.05))[0]
    actor.finish.set()
    assert (await step).applied
    assert len(await logprobs) == 2


async def test_a_group_without_ranks_is_a_lost_learner(tmp_path: Path) -> None:
    """So it is when a rank was lost while a checkpoint was written, and no other call was under way."""
    group = LearnerGroup(LearnerConfig(tmp_path, 1, 1e-3), [{}] * 2)
    sequence = WeightedSequence(np.arange(3, dtype=np.int32), np.array([0, 1, 1], dtype=np.float32))
    for call in (group.step([sequence], 0), group.snapshot(), group.publish_bucket(0), group.write_snapshot(tmp_path)):
        with pytest.raises(LearnerFailed):
            await call
