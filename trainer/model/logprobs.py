"""Log-probabilities of tokens, computed in chunks so that the logits never exist in full.

Rows of hidden states pass through the output head in chunks, forward and backward. The logits of 16k tokens with a
vocabulary of 150k take 10 GB in float32, and a plain log-softmax keeps three such tensors. The backward pass recomputes
each chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from agent_rft.trainer.model.head_memory_sizes import CHUNK_BYTES

_BITS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """Transformation of the head's logits z: y = scale * z, then softcap * tanh(y / softcap) if a softcap is set."""

    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def from_config(cls, config: Any) -> LogitTransform:
        """Read the transformation from a language model's config: Cohere's and Granite's scales, Gemma's softcap."""
        scale = getattr(config, "logit_scale", None) or 1.0
        scale *= getattr(config, "lm_head_multiplier", None) or 1.0
        scale /= getattr(config, "logits_scaling", None) or 1.0
        return cls(scale, getattr(config, "final_logit_softcapping", None))


class TokenLogProbs(nn.Module):
    """Output head of a language model that returns log-probabilities of target tokens instead of logits.

    Its `weight` [V, D] and `bias` [V] are parameters of this module. ZeRO-3 therefore gathers them for the forward and
    the backward pass, and a tied embedding stays tied. Without targets, the head returns the same logits as the head
    that it replaces.
    """

    def __init__(
        self,
        weight: nn.Parameter,
        temperature: float = 1.0,
        chunk_bytes: int | None = None,
        bias: nn.Parameter | None = None,
        transform: LogitTransform | None = None,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.temperature = temperature
        self._chunk_bytes = chunk_bytes
        self._transform = transform or LogitTransform()

    def forward(
        self, hidden: Tensor, targets: Tensor | None = None, masks: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor] | Tensor:
        """Return log-probabilities [M] of the targets and entropies [M] in nats, in float32.

        Both are computed from softmax(z / temperature), where z are the transformed logits of hidden [M, D]. Targets
        are [M] int64. No gradient flows through the entropies. `masks` are (allowed, mask_index) of `TokenMasks`;
        forbidden tokens have probability 0. Without targets, returns the logits.
        """
        if targets is None:
            return functional.linear(hidden, self.weight, self.bias)
        chunk_bytes = self._chunk_bytes or CHUNK_BYTES.get(hidden.device.type, CHUNK_BYTES["cpu"])
        chunk = max(1, chunk_bytes // (4 * len(self.weight)))
        head = _Head(self._transform, self.temperature, masks, chunk)
        result: tuple[Tensor, Tensor] = _ChunkedLogProbs.apply(  # type: ignore[no-untyped-call]
            hidden, self.weight, self.bias, targets, head
        )
        return result


@dataclass(frozen=True, slots=True)
class _Head:
    """Computes scores from hidden states, `chunk` rows at a time.

    The scores are the logits after `transform`, divided by the temperature.
    """

    transform: LogitTransform
    temperature: float
    masks: tuple[Tensor, Tensor] | None
    chunk: int

    def scores(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the scores [m, V] of hidden states [m, D], before masking."""
        logits = _matmul(hidden, weight.T)
        if bias is not None:
            logits += bias
        if (cap := self.transform.softcap) is not None:
            return logits.mul_(self.transform.scale / cap).tanh_().mul_(cap / self.temperature)
        return logits.mul_(self.slope)

    @property
    def slope(self) -> float:
        """Derivative of the scores with respect to the logits, ignoring the softcap."""
        return self.transform.scale / self.temperature

    def softcap_factors(self, scores: Tensor) -> Tensor | None:
        """Return the factor by which the softcap changes the slope at each score; None without a softcap."""
        return None if (cap := self.transform.softcap) is None else 1 - (scores * (self.temperature / cap)) ** 2

    def mask_forbidden(self, scores: Tensor, rows: slice) -> None:
        """Mask the forbidden tokens in the scores of `rows`, in place."""
        if self.masks is None:
            return
        allowed, which = self.masks
        octets = allowed[which[rows]].view(torch.uint8)  # uint8 takes 1/4 of the logits' memory, int32 all of it
        forbidden = (octets[:, :, None] & _BITS.to(octets.device)) == 0
        # Not -inf: the entropy's 0 x -inf would be NaN.
        scores.masked_fill_(forbidden.flatten(1)[:, : scores.shape[1]], torch.finfo(scores.dtype).min)


class _ChunkedLogProbs(torch.autograd.Function):
    """Autograd function that computes log p_t = z_t - logsumexp(z) from scores z.

    Gradient: d log p_t / dz = onehot(t) - softmax(z).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, head: _Head
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(hidden), dtype=_precision(hidden))
        entropies, normalizers = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for rows in _chunks(len(hidden), head.chunk):
            scores = head.scores(hidden[rows], weight, bias)
            head.mask_forbidden(scores, rows)
            normalizers[rows] = scores.logsumexp(-1)
            scores -= normalizers[rows, None]
            logprobs[rows] = scores.gather(1, targets[rows, None])[:, 0]
            entropies[rows] = -scores.exp().mul_(scores).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, normalizers)
        ctx.head = head
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normalizers = ctx.saved_tensors
        head: _Head = ctx.head
        outer = gradients[0] * head.slope
        d_hidden = torch.empty_like(hidden)
        # Accumulate over chunks in float32: in bfloat16 the contribution of later chunks would be rounded away.
        d_weight = torch.zeros_like(weight, dtype=_precision(weight)) if ctx.needs_input_grad[1] else None
        d_bias = torch.zeros_like(bias, dtype=_precision(bias)) if ctx.needs_input_grad[2] else None
        for rows in _chunks(len(hidden), head.chunk):
            scores = head.scores(hidden[rows], weight, bias)
            factors = head.softcap_factors(scores)
            head.mask_forbidden(scores, rows)
            d_scores = scores.sub_(normalizers[rows, None]).exp_().mul_(-outer[rows, None])
            d_scores.scatter_add_(1, targets[rows, None], outer[rows, None])
            d_logits = (d_scores if factors is None else d_scores.mul_(factors)).to(weight.dtype)
            d_hidden[rows] = d_logits @ weight
            if d_bias is not None:
                d_bias += d_logits.sum(0, dtype=d_bias.dtype)
            if d_weight is None:  # frozen, with LoRA
                continue
            if d_logits.dtype == d_weight.dtype:
                d_weight.addmm_(d_logits.T, hidden[rows])
                continue
            size = max(1, d_logits.numel() // hidden.shape[1])  # each slice's product takes at most the logits' memory
            for part in _chunks(len(weight), size):
                d_weight[part] += _matmul(d_logits.T[part], hidden[rows])
        return (
            d_hidden,
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None else d_bias.to(bias.dtype),
            None,
            None,
        )


def _matmul(left: Tensor, right: Tensor) -> Tensor:
    """Multiply two matrices; the product of half-precision matrices is float32.

    Rounding the product to bfloat16, which has 8 significant bits, would change a logit of 20 by up to 0.06 and a
    probability by up to 6 %.
    """
    precision = _precision(left)
    if left.is_cuda and left.dtype != precision:
        return torch.mm(left, right, out_dtype=precision)
    return left.to(precision) @ right.to(precision)  # on CPU, torch.mm does not support out_dtype


def _precision(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _chunks(num_rows: int, chunk: int) -> Iterator[slice]:
    return (slice(first, first + chunk) for first in range(0, num_rows, chunk))
