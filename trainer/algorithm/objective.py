"""The loss of one micro-batch, and sums over the trained tokens, from which the step's metrics are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from agent_rft.trainer.algorithm import loss
from agent_rft.trainer.model.policy import DeviceBatch

Sums = dict[str, Tensor]
"""Scalar sums by name, which are added up over micro-batches, updates and ranks."""


class AlgorithmSettings(Protocol):
    """Settings of `agent_rft.spec.job.AlgorithmSpec` that the loss uses.

    It is a protocol, because AlgorithmSpec needs pydantic, which may not be installed.
    """

    @property
    def clip_low(self) -> float: ...

    @property
    def clip_high(self) -> float: ...

    @property
    def importance_cap(self) -> float: ...

    @property
    def max_divergence(self) -> float | None: ...

    @property
    def kl_coef(self) -> float: ...


def rl_loss(
    batch: DeviceBatch,
    logprobs: Tensor,
    proximal: Tensor,
    reference: Tensor | None,
    algorithm: AlgorithmSettings,
    denominator: float,
) -> tuple[Tensor, Sums]:
    """Return the RL loss, and the sums from which `step_means` computes metrics.

    The loss is the clipped surrogate, plus the KL penalty if `reference` is not None. Both terms are multiplied by
    truncated importance weights. Tokens for which `loss.is_diverged` is True do not contribute to the surrogate, but
    they contribute to the KL penalty and count in the denominator.

    `logprobs`, `proximal` and `reference` are [M] as in `agent_rft.trainer.algorithm.loss`; only `logprobs` has a
    gradient. `denominator` is the same as in `loss.token_mean`.
    """
    clip = (algorithm.clip_low, algorithm.clip_high)
    weights = loss.importance_weights(proximal, batch.logprobs, algorithm.importance_cap)
    losses = weights * loss.clipped_surrogate(logprobs, proximal, batch.advantages, *clip)
    ratio = (proximal - batch.logprobs).exp()
    sums = {
        "importance_ratio": ratio.sum(),
        "importance_capped": (ratio > algorithm.importance_cap).sum(),
        "clipped": loss.is_clipped(logprobs, proximal, batch.advantages, *clip).sum(),
        "without_loss": (batch.weights == 0).sum(),
    }
    if algorithm.max_divergence is not None:
        diverged = loss.is_diverged(logprobs, batch.logprobs, batch.advantages, algorithm.max_divergence)
        losses = losses.masked_fill(diverged, 0.0)
        sums["diverged"] = diverged.sum()
    if reference is not None:
        weights = loss.importance_weights(logprobs, batch.logprobs, algorithm.importance_cap)
        losses = losses + algorithm.kl_coef * weights * loss.kl_penalty(logprobs, reference)
        sums["kl_reference"] = loss.kl_to_reference(logprobs.detach(), reference).sum()
    return loss.token_mean(losses, batch.weights, denominator), sums


def sft_loss(batch: DeviceBatch, logprobs: Tensor, denominator: float) -> tuple[Tensor, Sums]:
    """Return the weighted cross-entropy and empty sums; the counterpart of `rl_loss` for supervised training."""
    return loss.token_mean(loss.cross_entropy(logprobs), batch.weights, denominator), {}


def sum_logprob_gaps(batch: DeviceBatch, learner: Tensor, version: int) -> Sums:
    """Return sums of the differences between learner and engine, over the turns that only policy `version` sampled.

    `learner` [M] are the learner's log-probabilities with the weights of this version. Differences arise only because
    the learner's kernels differ from the engine's. Turns during which the engine loaded new weights do not count.
    """
    same = batch.versions == version
    difference = (learner.detach() - batch.logprobs).where(same, 0.0)
    return {
        "gap": difference.abs().sum(),
        "gap_ratio": (difference.exp() * same).sum(),
        "gap_tokens": same.sum(),
    }


def step_means(sums: Mapping[str, float], num_tokens: float) -> dict[str, float]:
    """Compute a step's metrics from `sums` over the step's `num_tokens` trained tokens.

    The keys of the result are metric names from `agent_rft.metrics`.
    """
    names = {
        "importance_ratio": "importance_ratio_mean",
        "importance_capped": "importance_capped_share",
        "clipped": "clipped_share",
        "diverged": "diverged_share",
        "kl_reference": "kl_reference",
        "entropy": "entropy",
    }
    metrics = {name: sums[key] / num_tokens for key, name in names.items() if key in sums}
    if sums.get("without_loss"):
        metrics["tokens_without_loss"] = sums["without_loss"]
    tokens = sums.get("gap_tokens", 0.0)
    if "gap_tokens" in sums:
        metrics["logprob_gap_tokens"] = tokens
    if tokens > 0:
        metrics |= {"logprob_gap": sums["gap"] / tokens, "importance_ratio_same_version": sums["gap_ratio"] / tokens}
    return metrics
