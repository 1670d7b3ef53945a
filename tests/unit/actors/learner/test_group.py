"""A learner rank's process: what it records about its calls."""

from __future__ import annotations

from errno import ENOSPC
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest

from actors.learner.group import LearnerGroup, _RankProcess
from actors.learner.rank import LearnerConfig
from actors.runtime.recorder import Recorder
from trainer.errors import LearnerFailed
from trainer.model.batch import WeightedSequence


class FakeRank:
    def step(self) -> float:
        return 0.5

    def write(self, folder: Path) -> None:
        raise OSError(ENOSPC, "No space left on device")


def test_only_calls_that_succeed_are_counted() -> None:
    process: Any = _RankProcess()
    process._rank, process._recorder = FakeRank(), Recorder()
    assert process.call("step") == 0.5
    assert process.write(Path("folder")).errno == ENOSPC  # the rank lives on
    text = generate_latest(process._recorder.registry).decode()
    assert 'agent_rft_rank_seconds_count{call="step"} 1.0' in text
    assert 'call="write"' not in text
    assert process.pulse() == []


async def test_a_group_without_ranks_is_a_lost_learner(tmp_path: Path) -> None:
    """So it is when a rank was lost while a checkpoint was written, and no other call was under way."""
    group = LearnerGroup(LearnerConfig(tmp_path, 1, 1e-3), [{}] * 2)
    sequence = WeightedSequence(np.arange(3, dtype=np.int32), np.array([0, 1, 1], dtype=np.float32))
    for call in (group.step([sequence], 0), group.snapshot(), group.gather_bucket(0), group.write(tmp_path)):
        with pytest.raises(LearnerFailed):
            await call
