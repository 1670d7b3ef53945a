"""The cases that a small model learns on two cores, nightly: the whole way with each seed, its gain reported."""

from __future__ import annotations

import json

import pytest

from examples.common.learn import learn
from examples.common.results import CASES, gain
from tests.e2e.command import processes_left
from tests.support.paths import ROOT


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_real_model_goes_the_whole_way(case: str, seed: int) -> None:
    made = learn(case, ROOT / "build" / "smollm2-135m-instruct", seed, {})
    summary = json.loads(made.read_text())
    untrained, _, tuned = summary["stages"]
    assert untrained["grade"] < 0.1
    assert len(tuned["grades"]) >= 100
    mean, half = gain(summary)
    assert mean + half > 0, "reinforcement made it worse"
    assert processes_left() == []
