"""The canary: which tokens it compares, its gap, and which engines it accepts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from agent_rft.actors.rollout.canary import CANARY_TOKENS, Canary
from tests.support.builders import group_request, rollout
from tests.support.fake_workers import FakeWorker


class Learner:
    """A learner whose log-probabilities are all -1; records the tokens it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    async def logprobs(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        self.asked.append(token_ids.tolist())
        return np.full(len(token_ids) - 1, -1.0, dtype=np.float32)


async def test_there_is_nothing_to_compare_before_the_first_rollout() -> None:
    learner, canary = Learner(), Canary(1e-3)
    canary.set_learner_logprobs(learner.logprobs)
    assert await canary.compute_learner_logprobs() is None and learner.asked == []


async def test_the_tokens_are_the_start_of_the_first_rollout() -> None:
    learner, canary = Learner(), Canary(1e-3)
    canary.observe(rollout(group_request(), sampled=2 * CANARY_TOKENS))
    canary.observe(rollout(group_request(), sampled=3))
    canary.set_learner_logprobs(learner.logprobs)
    expected = await canary.compute_learner_logprobs()
    assert expected is not None and expected.shape == (CANARY_TOKENS - 1,)
    assert learner.asked == [list(range(CANARY_TOKENS))]


async def test_the_gap_is_the_mean_absolute_difference() -> None:
    canary, worker = Canary(1e-3), FakeWorker()
    canary.observe(rollout(group_request(), sampled=3))
    worker.canary_values = np.array([-1.0, -1.2, -0.9, -1.0], dtype=np.float32)
    gap = await canary.measure_gap(worker, "engine-0", np.full(4, -1.0, dtype=np.float32))
    assert gap == pytest.approx(0.075)


async def test_the_gap_of_an_engine_that_failed_is_infinite() -> None:
    canary, worker = Canary(1e-3), FakeWorker()
    canary.observe(rollout(group_request(), sampled=3))
    worker.canary_values = None
    assert await canary.measure_gap(worker, "engine-0", np.zeros(4, dtype=np.float32)) == math.inf


@pytest.mark.parametrize(("gap", "accepted"), [(0.0, True), (0.9e-3, True), (1e-3, False), (math.nan, False)])
def test_an_engine_is_accepted_below_the_limit(gap: float, accepted: bool) -> None:
    assert Canary(1e-3).accepts(gap) == accepted
