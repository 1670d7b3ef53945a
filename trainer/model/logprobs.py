"""Log-probabilities of tokens without the full logits: rows go through the head in chunks, forward and backward.

Logits of 16k tokens x a vocabulary of 150k take 10 GB in float32, and a plain log-softmax keeps three such tensors.
Here only one chunk of them exists at a time; the backward pass recomputes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trainer.model.sizes import CHUNK_BYTES


class TokenLogProbs(nn.Module):
    """A language model's head that returns log-probabilities of given tokens instead of logits.

    It owns its `weight` [V, D], so ZeRO-3 gathers it around forward and backward, and a tied embedding stays tied.
    """

    def __init__(self, weight: nn.Parameter, temperature: float = 1.0, chunk_bytes: int | None = None) -> None:
        super().__init__()
        self.weight = weight
        self.temperature = temperature
        self._chunk_bytes = chunk_bytes

    def forward(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities [M] of the targets and entropies [M] in nats, in float32.

        Both are of softmax(hidden weight^T / temperature), for hidden [M, D] and targets [M] int64. No gradient flows
        through the entropies.
        """
        chunk_bytes = self._chunk_bytes or CHUNK_BYTES.get(hidden.device.type, CHUNK_BYTES["cpu"])
        chunk = max(1, chunk_bytes // (4 * len(self.weight)))
        result: tuple[Tensor, Tensor] = _ChunkedLogProbs.apply(  # type: ignore[no-untyped-call]
            hidden, self.weight, targets, self.temperature, chunk
        )
        return result


class _ChunkedLogProbs(torch.autograd.Function):
    """log p_t = z_t - logsumexp(z), z = h W^T / temperature; d log p_t / dz = onehot(t) - softmax(z)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(hidden), dtype=_precision(hidden))
        entropies, normalisers = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for rows in _chunks(len(hidden), chunk):
            scores = _logits(hidden[rows], weight, temperature)
            normalisers[rows] = scores.logsumexp(-1)
            scores -= normalisers[rows, None]
            logprobs[rows] = scores.gather(1, targets[rows, None])[:, 0]
            entropies[rows] = -scores.exp().mul_(scores).sum(-1)
        ctx.save_for_backward(hidden, weight, targets, normalisers)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, normalisers = ctx.saved_tensors
        outer = gradients[0] / ctx.temperature
        d_hidden = torch.empty_like(hidden)
        # Accumulate over chunks in float32: in bfloat16 the contribution of later chunks would be rounded away.
        d_weight = torch.zeros_like(weight, dtype=_precision(weight))
        for rows in _chunks(len(hidden), ctx.chunk):
            scores = _logits(hidden[rows], weight, ctx.temperature)
            d_scores = scores.sub_(normalisers[rows, None]).exp_().mul_(-outer[rows, None])
            d_scores.scatter_add_(1, targets[rows, None], outer[rows, None])
            d_logits = d_scores.to(weight.dtype)
            d_hidden[rows] = d_logits @ weight
            if d_logits.dtype == d_weight.dtype:
                d_weight.addmm_(d_logits.T, hidden[rows])
                continue
            size = max(1, d_logits.numel() // hidden.shape[1])  # a slice's product takes no more memory than the logits
            for part in _chunks(len(weight), size):
                d_weight[part] += _product(d_logits.T[part], hidden[rows])
        return d_hidden, d_weight.to(weight.dtype), None, None, None


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    return _product(hidden, weight.T).div_(temperature)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """The matrix product, from factors in half precision in float32: it is summed so, and must not be rounded back.

    bfloat16 has 8 significant bits: a logit of 20 would be off by up to 0.06, and a probability by as many percent.
    """
    precision = _precision(left)
    if left.is_cuda and left.dtype != precision:
        return torch.mm(left, right, out_dtype=precision)
    return left.to(precision) @ right.to(precision)  # CPUs have no such product


def _precision(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _chunks(num_rows: int, chunk: int) -> Iterator[slice]:
    return (slice(first, first + chunk) for first in range(0, num_rows, chunk))
