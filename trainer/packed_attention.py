"""Causal attention over packed sequences: no token sees another rollout's. Registered with transformers as "packed".

On a GPU in half precision one variable-length flash kernel, elsewhere one `scaled_dot_product_attention` a sequence:
the loop computes no padding and needs no mask, which on a CPU is faster than batches padded to like lengths.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from trainer.errors import UserError

NAME = "packed"


@dataclass(frozen=True, slots=True)
class Packing:
    """Where sequences lie on the N places: lengths (S numbers, sum N) and cu_seqlens [S + 1] int32 on the device."""

    lengths: tuple[int, ...]
    cu_seqlens: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Packing:
        starts = torch.tensor([0, *lengths]).cumsum(0)
        return cls(tuple(lengths), starts.to(device, torch.int32))


def _find_flash_kernel() -> Callable[..., Any] | None:
    """torch's variable-length attention, where it takes what it is given here (from torch 2.11 or 2.12 on)."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    takes = inspect.signature(varlen_attn).parameters
    return varlen_attn if {"window_size", "enable_gqa", "scale"} <= takes.keys() else None


_flash_kernel = _find_flash_kernel()


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
    """An attention function of transformers' `AttentionInterface`.

    query [1, H, N, D], key and value [1, K, N, D] with K dividing H -> [1, N, H, D]. A token sees itself and what
    stands before it in its own sequence, with `sliding_window` W at most W tokens, itself included. Dropout is left
    out: the learner's log-probabilities must be those of the engine.

    Raises:
        UserError: the model caps its scores or has attention sinks.
    """
    if attention_mask is not None or softcap is not None or s_aux is not None:
        raise UserError("this model caps its attention scores or has attention sinks: the learner cannot train it")
    on_flash = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)
    if _flash_kernel is not None and on_flash:
        longest = max(packing.lengths)
        output = _flash_kernel(
            *(tensor[0].transpose(0, 1) for tensor in (query, key, value)),
            packing.cu_seqlens,
            packing.cu_seqlens,
            longest,
            longest,
            scale=scaling,
            window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return output[None], None
    # split, not slices: the backward pass of a split is one concatenation, that of S slices S full-size tensors.
    queries, keys, values = (torch.split(tensor, list(packing.lengths), dim=2) for tensor in (query, key, value))
    sequences = zip(queries, keys, values, strict=True)
    outputs = [_attend(q, k, v, scaling, sliding_window) for q, k, v in sequences]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


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
