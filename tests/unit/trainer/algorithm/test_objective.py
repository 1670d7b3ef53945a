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


def batch(advantage: float = 1.0, versions: tuple[int, int, int] = (3, 3, 3)) -> DeviceBatch:
    """Three sampled tokens after a prompt of one token."""
    sequence = TrainSegment(
        token_ids=np.arange(4, dtype=np.int32),
        loss_mask=np.array([False, True, True, True]),
        logprobs=np.array([0, *map(log, ENGINE)], np.float32),
        versions=np.array([-1, *versions], np.int32),
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


def gap_metrics(batch: DeviceBatch, learner: Tensor, version: int) -> dict[str, float]:
    sums = objective.sum_logprob_gaps(batch, learner, version)
    return objective.step_means({name: float(value) for name, value in sums.items()}, 3)


def test_the_gap_to_the_engine_is_the_mean_over_tokens_of_the_learners_version() -> None:
    metrics = gap_metrics(batch(), LEARNER, version=3)
    assert metrics["logprob_gap_tokens"] == 3
    assert metrics["logprob_gap"] == pytest.approx((log(2) + log(4)) / 3)
    assert metrics["importance_ratio_same_version"] == pytest.approx((1 + 2 + 4) / 3)


@pytest.mark.parametrize(("versions", "version"), [((3, 3, 3), 9), ((3, 3, 4), 3), ((3, 3, 4), 4)])
def test_without_a_turn_of_only_the_learners_version_no_gap_is_reported(
    versions: tuple[int, int, int], version: int
) -> None:
    assert gap_metrics(batch(versions=versions), LEARNER, version) == {"logprob_gap_tokens": 0.0}


def test_only_turns_that_the_learners_version_sampled_alone_count_for_the_gap() -> None:
    """The second turn began with older weights, and the others with the learner's."""
    versions = np.array([-1, 4, 4, -1, 3, 4, 4, -1, -1, 4, 5], np.int32)
    three_turns = TrainSegment(
        token_ids=np.arange(11, dtype=np.int32),
        loss_mask=versions >= 0,
        logprobs=np.where(versions >= 0, log(0.5), 0).astype(np.float32),
        versions=versions,
        advantage=1.0,
    )
    [[micro_batch]] = pack_sequences([three_turns], num_ranks=1, budget=20)
    assert micro_batch.versions.tolist() == [4, 4, -1, -1, -1, -1, -1]
    learner = torch.tensor([0.25, 1.0, *[0.01] * 5]).log()
    metrics = gap_metrics(DeviceBatch.from_micro_batch(micro_batch, CPU), learner, version=4)
    assert metrics["logprob_gap_tokens"] == 2 and metrics["logprob_gap"] == pytest.approx(log(2))
    assert three_turns.versions is versions and versions[4] == 3, "the rollout keeps its versions"


def test_the_supervised_loss_is_the_weighted_mean_cross_entropy() -> None:
    weights = np.array([0, 1, 0.5, 1], np.float32)
    [[micro_batch]] = pack_sequences([WeightedSequence(np.arange(4, dtype=np.int32), weights)], num_ranks=1, budget=10)
    loss, _ = objective.sft_loss(DeviceBatch.from_micro_batch(micro_batch, CPU), LEARNER, micro_batch.total_weight)
    assert float(loss) == pytest.approx((log(2) + 0.5 * log(2) + log(2.5)) / 2.5)
