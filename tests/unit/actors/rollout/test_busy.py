"""How busy engines were between two steps."""

from __future__ import annotations

import pytest

from agent_rft.actors.rollout.live_counts import BusyShare


def test_the_share_is_that_of_the_engines_that_were_there_the_whole_time() -> None:
    now = 100.0
    share = BusyShare(clock=lambda: now)
    assert share.measure({"a": 7.0, "lost": 50.0}) is None
    now = 110.0
    assert share.measure({"a": 16.0, "new": 3.0}) == pytest.approx(0.9)
    now = 120.0
    assert share.measure({"a": 16.0, "new": 8.0}) == pytest.approx(0.25)
    assert share.measure({}) is None
