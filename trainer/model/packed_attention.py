"""Causal attention over packed sequences: no token sees another sequence. Registered with transformers as "packed".

On a GPU in half precision it is one variable-length flash kernel, elsewhere one `scaled_dot_product_attention` per
sequence. That loop needs no padding and no mask, which on a CPU is faster than padded batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from trainer.errors import UserError

NAME = "packed"


@dataclass(frozen=True, slots=True)
class Packing:
    """Where S sequences lie in N packed tokens: lengths (S numbers, sum N), cu_seqlens [S + 1] int32 on the device."""

    lengths: tuple[int, ...]
    cu_seqlens: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Packing:
        starts = torch.tensor([0, *lengths]).cumsum(0)
        return cls(tuple(lengths), starts.to(device, torch.int32))


_FLASH_TAKES_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""True from torch 2.12 on."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """An attention function for transformers' `AttentionInterface`.

    query [1, H, N, D], key and value [1, K, N, D] with K dividing H -> [1, N, H, D]. A token attends to itself and to
    earlier tokens of its own sequence; with `sliding_window` W, to the last W of these, itself included. There is no
    dropout, because the learner's log-probabilities must match the engine's.

    Raises:
        UserError: The model caps its attention scores or has attention sinks.
    """
    if attention_mask is not None or softcap is not None or s_aux is not None:
        raise UserError(
            "the model caps its attention scores or has attention sinks, which the learner does not support"
        )
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _flash(query, key, value, packing, scaling, sliding_window)[None], None
    # split, not slices: the backward pass of a split is one concatenation, that of S slices is S full-size tensors.
    queries, keys, values = (torch.split(tensor, list(packing.lengths), dim=2) for tensor in (query, key, value))
    sequences = zip(queries, keys, values, strict=True)
    outputs = [_attend(q, k, v, scaling, sliding_window) for q, k, v in sequences]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _flash(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float | None, window: int | None
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    options: dict[str, Any] = {"enable_gqa": groups > 1} if _FLASH_TAKES_GROUPS else {}
    if not _FLASH_TAKES_GROUPS:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    longest = max(packing.lengths)
    output: Tensor = varlen_attn(  # type: ignore[assignment]  # a pair only with return_aux
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        packing.cu_seqlens,
        packing.cu_seqlens,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        **options,
    )
    return output


def _attend(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None) -> Tensor:
    length = query.shape[2]
    mask = None
    if window is not None and window < length:
        mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril().triu(1 - window)
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


AttentionInterface.register(NAME, packed_attention)
