"""Loss terms against numbers worked out by hand, and their gradients against finite differences."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from torch import Tensor

from agent_rft.trainer.algorithm import loss


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gradient_of(losses: Tensor, logprobs: Tensor) -> list[float]:
    [gradient] = torch.autograd.grad(losses.sum(), logprobs)
    return gradient.tolist()


def test_importance_weights_are_ratios_truncated_at_the_cap() -> None:
    proximal, engine = t(log(0.5), log(0.2), log(0.9)), t(log(0.25), log(0.4), log(0.1))
    assert loss.importance_weights(proximal, engine, cap=2.5).tolist() == pytest.approx([2.0, 0.5, 2.5])


def test_importance_weights_carry_no_gradient() -> None:
    proximal = t(-1.0).requires_grad_()
    assert not loss.importance_weights(proximal, t(-2.0), cap=2.0).requires_grad


def test_the_surrogate_has_no_gradient_beyond_the_clip_range() -> None:
    # ratios 1.5, 0.5, 1.5, 0.5 at clips of 0.2 and 0.28
    logprobs = t(log(1.5), log(0.5), log(1.5), log(0.5)).requires_grad_()
    advantages = t(2.0, 2.0, -2.0, -2.0)
    losses = loss.clipped_surrogate(logprobs, torch.zeros(4).double(), advantages, 0.2, 0.28)
    assert losses.tolist() == pytest.approx([-2.56, -1.0, 3.0, 1.6])
    assert gradient_of(losses, logprobs) == pytest.approx([0.0, -1.0, 3.0, 0.0])
    clipped = loss.is_clipped(logprobs, torch.zeros(4).double(), advantages, 0.2, 0.28)
    assert clipped.tolist() == [True, False, False, True]


DRIFTED = [0.8, 0.1, 0.1, 0.8, 0.1, 0.69, 0.31]
ADVANTAGES = [1.0, 1.0, -1.0, -1.0, 0.0, 1.0, -1.0]
"""Tokens that the engine sampled with probability 0.5; the last two have moved by 0.19."""


def test_tokens_have_diverged_where_the_update_would_move_them_further_away() -> None:
    engine = torch.full((7,), 0.5).double().log()
    diverged = loss.is_diverged(t(*DRIFTED).log(), engine, t(*ADVANTAGES), max_difference=0.2)
    assert diverged.tolist() == [True, False, True, False, False, False, False]


def test_divergence_is_a_difference_of_probabilities_not_their_ratio() -> None:
    engine, now = t(0.001, 0.99).log(), t(0.01, 0.5).log()  # ratios 10 and 0.5
    assert loss.is_diverged(now, engine, t(1.0, -1.0), max_difference=0.2).tolist() == [False, True]


def test_at_the_first_update_the_gradient_is_that_of_the_policy_gradient() -> None:
    logprobs = t(-1.0, -2.0, -3.0).requires_grad_()
    losses = loss.clipped_surrogate(logprobs, logprobs.detach(), t(1.0, -0.5, 0.0), 0.2, 0.28)
    assert gradient_of(losses, logprobs) == pytest.approx([-1.0, 0.5, 0.0])


def test_kl_to_the_start_is_zero_at_the_start_and_positive_elsewhere() -> None:
    logprobs, start = t(log(0.5), log(0.5), log(0.5)), t(log(0.5), log(0.25), log(0.75))
    expected = [0.0, 0.5 - log(0.5) - 1, 1.5 - log(1.5) - 1]
    assert loss.kl_to_reference(logprobs, start).tolist() == pytest.approx(expected)


def test_the_mean_of_k3_over_own_samples_is_the_kl_divergence() -> None:
    policy, start = t(0.7, 0.2, 0.1), t(0.4, 0.4, 0.2)
    exact = float((policy * (policy / start).log()).sum())
    estimated = float((policy * loss.kl_to_reference(policy.log(), start.log())).sum())
    assert estimated == pytest.approx(exact)


def test_the_gradient_of_the_penalty_is_that_of_the_kl_divergence_whoever_sampled() -> None:
    logits, start, engine = t(0.3, -0.2, 0.5).requires_grad_(), t(0.4, 0.4, 0.2), t(0.5, 0.2, 0.3)
    policy = logits.softmax(-1)
    exact = gradient_of(policy * (policy / start).log(), logits)
    logprobs = logits.log_softmax(-1)
    weights = loss.importance_weights(logprobs, engine.log(), cap=10.0)
    sampled = engine * weights * loss.kl_penalty(logprobs, start.log())  # the mean over the engine's samples
    assert gradient_of(sampled, logits) == pytest.approx(exact)


def test_cross_entropy_is_the_negative_log_probability() -> None:
    assert loss.cross_entropy(t(log(0.25))).item() == pytest.approx(log(4))


def test_every_token_counts_the_same_however_it_is_packed() -> None:
    losses, weights = t(1.0, 2.0, 3.0, 4.0), t(1.0, 0.5, 0.0, 1.0)
    whole = loss.token_mean(losses, weights, 2.5)
    parts = loss.token_mean(losses[:1], weights[:1], 2.5) + loss.token_mean(losses[1:], weights[1:], 2.5)
    assert whole.item() == pytest.approx(parts.item()) == pytest.approx((1 + 1 + 4) / 2.5)


def test_gradients_agree_with_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    draw = lambda: torch.randn(6, dtype=torch.float64, generator=generator)  # noqa: E731
    proximal, start, advantages, engine = draw(), draw(), draw(), draw()
    logprobs = (proximal + 0.1 * draw()).requires_grad_()
    weights = loss.importance_weights(proximal, engine, 2.0)

    def total(values: Tensor) -> Tensor:
        surrogate = loss.clipped_surrogate(values, proximal, advantages, 0.2, 0.28)
        return loss.token_mean(weights * surrogate + 0.3 * loss.kl_penalty(values, start), torch.ones(6).double(), 6.0)

    assert torch.autograd.gradcheck(total, (logprobs,))


def test_a_very_stale_token_has_a_bounded_gradient() -> None:
    logprobs = t(-0.1).requires_grad_()
    weights = loss.importance_weights(logprobs, t(-20.0), cap=2.0)
    losses = weights * loss.clipped_surrogate(logprobs, logprobs.detach(), t(1.0), 0.2, 0.28)
    assert gradient_of(losses, logprobs) == pytest.approx([-2.0])
    assert exp(19.9) > 1e8  # what the untruncated weight would have been
