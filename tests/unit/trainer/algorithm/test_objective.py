"""Losses and metrics of one micro-batch against numbers worked out by hand."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch
from torch import Tensor

from agent_rft.spec.job import AlgorithmSpec
from agent_rft.trainer.algorithm import loss as terms
from agent_rft.trainer.algorithm import objective
from agent_rft.trainer.model.micro_batches import WeightedSequence, pack_sequences
from agent_rft.trainer.model.policy import DeviceBatch
from agent_rft.types import TrainSegment

CPU = torch.device("cpu")
ENGINE = [0.5, 0.25, 0.1]
LEARNER = torch.tensor([0.5, 0.5, 0.4]).log()


def batch(advantage: float = 1.0) -> DeviceBatch:
    """Three sampled tokens after a prompt of one token; the last has a newer version than the others."""
    sequence = TrainSegment(
        token_ids=np.arange(4, dtype=np.int32),
        loss_mask=np.array([False, True, True, True]),
        logprobs=np.array([0, *map(log, ENGINE)], np.float32),
        versions=np.array([-1, 3, 3, 4], np.int32),
        advantage=advantage,
    )
    [[micro_batch]] = pack_sequences([sequence], num_ranks=1, budget=10)
    return DeviceBatch.from_micro_batch(micro_batch, CPU)


def reinforcement(
    proximal: Tensor, start: Tensor | None = None, **changes: float | None
) -> tuple[float, dict[str, float]]:
    algorithm = AlgorithmSpec(**{"importance_cap": 3.0, "max_divergence": None} | changes)
    loss, sums = objective.rl_loss(batch(), LEARNER, proximal, start, algorithm, 3.0)
    return float(loss), objective.step_means({name: float(value) for name, value in sums.items()}, 3)


def test_on_policy_the_loss_weights_each_token_by_its_truncated_importance() -> None:
    loss, metrics = reinforcement(proximal=LEARNER)
    assert loss == pytest.approx(-(1 + 2 + 3) / 3)
    assert metrics["importance_ratio_mean"] == pytest.approx((1 + 2 + 4) / 3)
    assert metrics["importance_capped_share"] == pytest.approx(1 / 3)
    assert metrics["clipped_share"] == 0.0
    assert "kl_reference" not in metrics


def test_after_an_update_the_ratio_to_the_proximal_policy_is_clipped() -> None:
    proximal = torch.tensor([0.5, 0.25, 0.4]).log()  # the second token's probability has doubled since
    loss, metrics = reinforcement(proximal)
    assert loss == pytest.approx(-(1 + 1.28 + 3) / 3)
    assert metrics["clipped_share"] == pytest.approx(1 / 3)


def gradient(advantage: float, **changes: float | None) -> tuple[list[float], float | None]:
    """The gradient of each token's log-probability at a batch's first update, and the share of diverged tokens."""
    logprobs = LEARNER.clone().requires_grad_()
    algorithm = AlgorithmSpec(importance_cap=3.0, **changes)
    loss, sums = objective.rl_loss(batch(advantage), logprobs, logprobs.detach(), None, algorithm, 3.0)
    loss.backward()
    assert logprobs.grad is not None
    metrics = objective.step_means({name: float(value) for name, value in sums.items()}, 3)
    return (3 * logprobs.grad).tolist(), metrics.get("diverged_share")


def test_tokens_that_have_moved_far_from_the_engine_have_no_gradient() -> None:
    # differences 0, 0.25 and 0.3; weights 1, 2 and 3
    assert gradient(1.0, max_divergence=0.28) == (pytest.approx([-1.0, -2.0, 0.0]), pytest.approx(1 / 3))
    assert gradient(1.0, max_divergence=0.2) == (pytest.approx([-1.0, 0.0, 0.0]), pytest.approx(2 / 3))
    assert gradient(-1.0, max_divergence=0.2) == (pytest.approx([1.0, 2.0, 3.0]), 0.0), "these updates lead back"


def test_without_a_limit_the_loss_is_what_it_was_before_there_was_one() -> None:
    off, share = gradient(1.0, max_divergence=None)
    weights = terms.importance_weights(LEARNER, batch().logprobs, 3.0)
    assert off == (-weights).tolist() and share is None
    assert gradient(1.0, max_divergence=0.5)[0] == off, "bit for bit, also where no token has diverged"


def test_a_diverged_token_keeps_the_kl_penalty_and_its_place_in_the_mean() -> None:
    start = torch.tensor([0.5, 0.5, 0.2]).log()
    loss, _ = reinforcement(LEARNER, start, kl_coef=0.3, max_divergence=0.2)
    assert loss == pytest.approx((-1.0 + 0.3 * 3 * (log(2) ** 2 / 2)) / 3)


def test_the_kl_to_the_start_model_is_added_by_its_coefficient() -> None:
    start = torch.tensor([0.5, 0.5, 0.2]).log()
    loss, metrics = reinforcement(LEARNER, start, kl_coef=0.3)
    assert loss == pytest.approx(-2.0 + 0.3 * 3 * (log(2) ** 2 / 2) / 3)  # importance 4, truncated to 3
    assert metrics["kl_reference"] == pytest.approx((0.5 - log(0.5) - 1) / 3)


def test_the_gap_to_the_engine_is_measured_on_tokens_of_the_learners_version_only() -> None:
    sums = objective.sum_logprob_gaps(batch(), LEARNER, version=3)
    metrics = objective.step_means({name: float(value) for name, value in sums.items()}, 3)
    assert metrics["logprob_gap_tokens"] == 2
    assert metrics["logprob_gap"] == pytest.approx(log(2) / 2)
    assert metrics["importance_ratio_same_version"] == pytest.approx(1.5)


def test_without_such_tokens_no_gap_is_reported() -> None:
    sums = objective.sum_logprob_gaps(batch(), LEARNER, version=9)
    assert objective.step_means({name: float(value) for name, value in sums.items()}, 3) == {"logprob_gap_tokens": 0.0}


def test_the_supervised_loss_is_the_weighted_mean_cross_entropy() -> None:
    weights = np.array([0, 1, 0.5, 1], np.float32)
    [[micro_batch]] = pack_sequences([WeightedSequence(np.arange(4, dtype=np.int32), weights)], num_ranks=1, budget=10)
    loss, _ = objective.sft_loss(DeviceBatch.from_micro_batch(micro_batch, CPU), LEARNER, micro_batch.total_weight)
    assert float(loss) == pytest.approx((log(2) + 0.5 * log(2) + log(2.5)) / 2.5)
