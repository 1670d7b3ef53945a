"""A learner rank's process: what it records about its calls."""

from __future__ import annotations

from errno import ENOSPC
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest

from actors.learner.group import _RankProcess
from actors.runtime.recorder import Recorder


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
