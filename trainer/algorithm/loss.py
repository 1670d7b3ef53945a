"""Terms of the loss, one pure function each. Tensors have shape [M], with one float32 value per trained token.

Log-probabilities of the same tokens come from three policies:

    logprobs    the learner's current policy, the only one with a gradient
    proximal    the learner's policy before the batch's first update; updates are clipped around this policy
    engine      the policy that sampled the token; it may be older, and its log-probabilities come from other kernels
"""

from __future__ import annotations

import torch
from torch import Tensor


def importance_weights(proximal: Tensor, engine: Tensor, cap: float) -> Tensor:
    """Return min(exp(proximal - engine), cap) [M], without gradient.

    The weights correct for sampling tokens from the engine's policy instead of the proximal policy. For example, a
    token with probability 0.5 under the proximal policy and 0.25 under the engine's policy has weight 2. Source:
    decoupled PPO, Hilton et al. 2021, arXiv 2110.00641. The truncation to `cap` trades a small bias for
    bounded variance, as in V-trace, Espeholt et al. 2018, arXiv 1802.01561.
    """
    return (proximal - engine).detach().exp().clamp(max=cap)


def clipped_surrogate(
    logprobs: Tensor, proximal: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """Return -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) [M], with r = exp(logprobs - proximal).

    A are the advantages [M]. With clip_low 0.2 and clip_high 0.28:

        A = 2     r = 1.5    loss -2.56    no gradient: the probability has risen enough
        A = 2     r = 0.5    loss -1.0     gradient: the probability fell although the advantage is positive
        A = -2    r = 1.5    loss 3.0      gradient: the probability rose although the advantage is negative
        A = -2    r = 0.5    loss 1.6      no gradient: the probability has fallen enough

    At the first update of a batch, r is 1, and the gradient equals the gradient of -A log p. Source: PPO, Schulman et
    al. 2017, arXiv 1707.06347, equation 7. The higher upper bound is DAPO's "clip-higher", Yu et al. 2025, arXiv
    2503.14476, equation 10.
    """
    ratio = (logprobs - proximal.detach()).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


def is_clipped(logprobs: Tensor, proximal: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Return [M] bool, True where `clipped_surrogate` has no gradient because the policy has moved enough."""
    ratio = (logprobs - proximal).detach().exp()
    return ((advantages > 0) & (ratio > 1 + clip_high)) | ((advantages < 0) & (ratio < 1 - clip_low))


def is_diverged(logprobs: Tensor, engine: Tensor, advantages: Tensor, max_difference: float) -> Tensor:
    """Return [M] bool, True for tokens whose probability has moved too far from the engine's probability.

    For these tokens, the two probabilities differ by more than `max_difference`, and an update would increase the
    difference. These tokens are left out of the policy loss. For example, let `max_difference` be 0.2 and the engine's
    probability 0.5. A is the token's advantage, and p the learner's probability:

        A > 0    p = 0.8    True     the probability has risen enough
        A > 0    p = 0.1    False    the update reduces the difference
        A < 0    p = 0.1    True     the probability has fallen enough
        A < 0    p = 0.8    False    the update reduces the difference

    Clipping does not detect such tokens, because it compares the learner's probability with the learner's own
    probability at the start of the batch. At the first update of a batch, the two are equal, even if an older policy
    sampled the token. The bound applies to the difference, so rare tokens can become likelier: from 0.001 to 0.01 the
    difference is only 0.009, although the ratio is 10. Likely tokens cannot suddenly become rare: from 0.99 to 0.5 the
    difference is 0.49, although the ratio is only 0.5. Source: DPPO with the binary total variation, Qi et al. 2026,
    "Rethinking the Trust Region in LLM Reinforcement Learning", arXiv 2602.04879. The paper uses this mask instead of
    clipping and truncation; this code uses all three.
    """
    difference = logprobs.detach().exp() - engine.exp()
    return ((advantages > 0) & (difference > max_difference)) | ((advantages < 0) & (difference < -max_difference))


def kl_to_reference(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return the k3 estimator [M] of the KL divergence to the reference model.

    The estimator is exp(d) - d - 1, with d = reference - logprobs. `reference` has the log-probabilities under the
    reference model. The estimator is never negative. On the learner's own samples, the mean of the estimator is
    KL(learner || reference). Use the estimator for metrics only: as a loss, it would have the gradient of KL(reference
    || learner). Source: Schulman 2020, "Approximating KL divergence", joschu.net/blog/kl-approx.html.
    """
    difference = reference - logprobs
    return difference.exp() - difference - 1


def kl_penalty(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return (logprobs - reference)^2 / 2 [M], where `reference` has the log-probabilities under the reference model.

    On the learner's own samples, the mean gradient equals the gradient of KL(learner || reference). Tokens that another
    policy sampled need `importance_weights`. Source: Tang and Munos 2025, "On a few pitfalls in KL divergence gradient
    estimation for RL", arXiv 2506.09477.
    """
    return (logprobs - reference.detach()).square() / 2


def cross_entropy(logprobs: Tensor) -> Tensor:
    """Return -log p of each target token, with shape [M]. This is the loss of supervised training."""
    return -logprobs


def token_mean(losses: Tensor, weights: Tensor, denominator: float) -> Tensor:
    """Return sum(weights x losses) / denominator, a scalar, for losses and weights [M].

    `denominator` is the sum of the weights over all micro-batches of all ranks in one update. Every token therefore
    counts the same, however the tokens are packed, and long rollouts count in proportion to their length. Source: the
    token-level loss of DAPO, arXiv 2503.14476, section 3.3.
    """
    return (weights * losses).sum() / denominator
