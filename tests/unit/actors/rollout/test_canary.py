"""The canary: which tokens and experts it compares, its gap, and which engines it accepts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agent_rft.actors.rollout.canary import CANARY_LIMITS, CANARY_TOKENS, MAX_MIXTURE_LIMIT, Canary
from tests.support.builders import group_request, rollout
from tests.support.fake_workers import FakeWorker


class Learner:
    """A learner whose log-probabilities are all -1, or lower by the number of the first replayed expert.

    Records the tokens it was asked for, and the first expert of each replay.
    """

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.replayed: list[int] = []

    async def logprobs(
        self, token_ids: NDArray[np.int32], experts: NDArray[np.integer[Any]] | None
    ) -> NDArray[np.float32]:
        self.asked.append(token_ids.tolist())
        if experts is not None:
            self.replayed.append(int(experts.flat[0]))
        value = -1.0 - (0 if experts is None else self.replayed[-1])
        return np.full(len(token_ids) - 1, value, dtype=np.float32)


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


def canary_of_five_tokens(learner: Learner) -> Canary:
    canary = Canary(1e-3)
    canary.observe(rollout(group_request(), sampled=3))
    canary.set_learner_logprobs(learner.logprobs)
    return canary


async def test_the_gap_is_the_mean_absolute_difference() -> None:
    canary, worker = canary_of_five_tokens(Learner()), FakeWorker()
    worker.canary_values = np.array([-1.0, -1.2, -0.9, -1.0], dtype=np.float32)
    expected = np.full(4, -1.0, dtype=np.float32)
    assert await canary.measure_gaps([(worker, "engine-0")], expected, can_replay=True) == [pytest.approx(0.075)]


async def test_the_gap_of_an_engine_that_failed_is_infinite() -> None:
    canary, failed, worker = canary_of_five_tokens(Learner()), FakeWorker(), FakeWorker()
    failed.canary_values = None
    engines = [(failed, "engine-0"), (worker, "engine-1")]
    assert await canary.measure_gaps(engines, np.zeros(4, np.float32), can_replay=True) == [math.inf, 0.0]


async def test_the_learner_computes_with_the_experts_that_an_engine_reports() -> None:
    """Two engines choose the same experts, one chooses others, and one reports none."""
    learner = Learner()
    canary, workers = canary_of_five_tokens(learner), [FakeWorker() for _ in range(4)]
    for worker, expert in zip(workers, (1, 1, 2, None), strict=True):
        worker.experts = None if expert is None else np.full((5, 2, 1), expert, np.uint8)
        worker.canary_values = np.full(4, -1.0 if expert is None else -1.0 - expert, np.float32)
    engines = [(worker, f"engine-{i}") for i, worker in enumerate(workers)]
    expected = np.full(4, -1.0, np.float32)
    assert await canary.measure_gaps(engines, expected, can_replay=True) == [0.0] * 4
    assert learner.replayed == [1, 2]
    assert await canary.measure_gaps(engines, expected, can_replay=False) == [1.0, 1.0, 2.0, 0.0]
    assert learner.replayed == [1, 2]


@pytest.mark.parametrize(
    ("gap", "accepted"), [(0.0, True), (0.9e-3, True), (1e-3, False), (math.nan, False), (math.inf, False)]
)
@pytest.mark.parametrize("first", [0.0, 0.9e-3, 0.2])
def test_a_dense_model_s_engine_is_accepted_below_a_fixed_limit(gap: float, accepted: bool, first: float) -> None:
    canary = Canary(1e-3)
    canary.accept([first])
    assert canary.accept([gap, gap]) == [accepted, accepted]


@pytest.mark.parametrize(
    ("first", "limit"),
    [
        ([0.03], 0.1),  # the limit of the dtype is the minimum
        ([0.098], 0.196),
        ([0.29, 0.098, math.inf, math.nan], 0.196),  # the engine that is nearest to the learner
        ([0.16], MAX_MIXTURE_LIMIT),
        ([0.299], MAX_MIXTURE_LIMIT),
    ],
)
def test_the_first_gap_of_a_mixture_sets_its_limit(first: list[float], limit: float) -> None:
    canary = Canary(CANARY_LIMITS["bfloat16"], is_mixture=True)
    assert canary.accept(first) == [gap < limit for gap in first]
    assert canary.limit == pytest.approx(limit)
    assert canary.accept([0.99 * limit, 1.01 * limit, math.nan]) == [True, False, False]
    assert canary.accept([0.001]) == [True] and canary.limit == pytest.approx(limit)  # it is learned once


@pytest.mark.parametrize("first", [[MAX_MIXTURE_LIMIT], [0.7, math.inf], [math.inf], [math.nan], []])
def test_a_mixture_whose_first_gap_is_too_large_is_not_accepted(first: list[float]) -> None:
    canary = Canary(CANARY_LIMITS["bfloat16"], is_mixture=True)
    assert canary.accept(first) == [False] * len(first)
    assert canary.accept([0.098]) == [True] and canary.limit == pytest.approx(0.196)


def test_in_float32_the_limit_of_a_mixture_stays_low() -> None:
    canary = Canary(CANARY_LIMITS["float32"], is_mixture=True)
    assert canary.accept([1e-6]) == [True]
    assert canary.accept([0.9e-3, 3e-3]) == [True, False]
