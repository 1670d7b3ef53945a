"""What is minimised: one pure function per term. All are per trained token, tensors [M] in float32.

Three policies meet here. `logprobs`: the learner's now, the only one with a gradient. `proximal`: the learner's before
the batch's first update, what steps are clipped around. `engine`: the one that sampled the token, perhaps some versions
old and computed by other kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def importance_weights(proximal: Tensor, engine: Tensor, cap: float) -> Tensor:
    """W = min(exp(proximal - engine), cap), without gradient.

    Corrects for tokens having been sampled by another policy than the proximal one. Source: decoupled PPO, Hilton et
    al. 2021, arXiv 2110.00641; truncated as in Espeholt et al. 2018 (V-trace), arXiv 1802.01561: the cap trades a
    small bias for bounded variance.
    """
    return (proximal - engine).detach().exp().clamp(max=cap)


def clipped_surrogate(
    logprobs: Tensor, proximal: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = exp(logprobs - proximal).

    Source: PPO, Schulman et al. 2017, arXiv 1707.06347, equation 7; the higher upper bound is DAPO's "clip-higher", Yu
    et al. 2025, arXiv 2503.14476, equation 10. At the first update of a batch r is 1 and the gradient that of -A log p.
    """
    ratio = (logprobs - proximal.detach()).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


def is_clipped(logprobs: Tensor, proximal: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """[M] bool: where `clipped_surrogate` has no gradient because the step went far enough already."""
    ratio = (logprobs - proximal).detach().exp()
    return ((advantages > 0) & (ratio > 1 + clip_high)) | ((advantages < 0) & (ratio < 1 - clip_low))


def kl_to_start(logprobs: Tensor, start: Tensor) -> Tensor:
    """k3 = exp(d) - d - 1, d = start - logprobs: never negative, and its mean over own samples is KL(learner || start).

    Source: Schulman 2020, "Approximating KL divergence", joschu.net/blog/kl-approx.html; as a loss term in GRPO, Shao
    et al. 2024, arXiv 2402.03300, equation 4.
    """
    difference = start.detach() - logprobs
    return difference.exp() - difference - 1


def cross_entropy(logprobs: Tensor) -> Tensor:
    """-log p of the token that stands there: maximum likelihood (supervised training)."""
    return -logprobs


def token_mean(losses: Tensor, weights: Tensor, denominator: float) -> Tensor:
    """sum(weights x losses) / denominator, a scalar.

    `denominator` is the sum of the weights over all micro-batches of all ranks of one update: so each token counts the
    same, however it was packed, and long rollouts count by their length. Source: the token-level loss of DAPO,
    arXiv 2503.14476, section 3.3.
    """
    return (weights * losses).sum() / denominator
