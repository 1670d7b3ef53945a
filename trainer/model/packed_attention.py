"""Causal attention over packed sequences, registered with transformers as "packed". No token sees another sequence.

On a GPU in half precision, one variable-length flash kernel computes the attention of all sequences. Otherwise,
`loop_attention` calls `scaled_dot_product_attention` once per sequence, without padding or masks. On a CPU, this is
faster than padded batches. `benchmarks.gpu` compares both implementations with alternatives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from agent_rft.errors import UserError
from agent_rft.trainer.model.shared_prefix import NO_PARENT

ATTENTION_NAME = "packed"
"""Value of transformers' `attn_implementation`."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Positions of S sequences in N packed tokens.

    Attributes:
        lengths: S numbers that add up to N.
        cu_seqlens: [S + 1] int32, the cumulative lengths, on the device.
        experts: [N, L, k] int64, for `router_replay`.
        parents: S numbers, as in `PrefixTree`: for each sequence, the index of the earlier sequence that it continues
            and attends to. None: all sequences are independent. Layers with chunked attention ignore the parents.
        masks: Cache of `loop_attention`'s masks, such as sliding-window masks. All layers share this cache.
        chunks: Cache of the packings for chunked attention, by chunk size. All layers share this cache.
    """

    lengths: tuple[int, ...]
    cu_seqlens: Tensor
    experts: Tensor | None = None
    parents: tuple[int, ...] | None = None
    masks: dict[Any, Any] = field(default_factory=dict, compare=False)
    chunks: dict[int, Packing] = field(default_factory=dict, compare=False)

    @classmethod
    def from_lengths(
        cls,
        lengths: Sequence[int],
        device: torch.device,
        experts: Tensor | None = None,
        parents: tuple[int, ...] | None = None,
    ) -> Packing:
        starts = torch.tensor([0, *lengths]).cumsum(0)
        return cls(tuple(lengths), starts.to(device, torch.int32), experts, parents)

    def split_chunks(self, size: int) -> Packing:
        """Return a packing in which each chunk of `size` tokens is a separate sequence."""
        if size not in self.chunks:
            lengths = [min(size, length - start) for length in self.lengths for start in range(0, length, size)]
            self.chunks[size] = Packing.from_lengths(lengths, self.cu_seqlens.device)
        return self.chunks[size]


_FLASH_SUPPORTS_GQA = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""Whether torch's flash kernel supports grouped-query attention, as it does from torch 2.12 on."""
MAX_FLASH_HEAD_SIZE = 256
"""Largest head size of the flash kernel. The full attention of Gemma 4 has larger heads."""

Attend = Callable[[Tensor, Tensor, Tensor, Packing, float | None, int | None], Tensor]
"""Attention of query [1, H, N, D] to key and value [1, K, N, D]; returns [1, N, H, D].

The other arguments are packing, scaling and sliding window."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing,
    attend: Attend | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute attention for transformers' `AttentionInterface`.

    The shapes are query [1, H, N, D], key [1, K, N, D], value [1, K, N, E] and result [1, N, H, E]; K divides H. A
    token attends to itself and to earlier tokens of the same sequence. `sliding_window` W limits this to the last W
    tokens, including the token itself; `chunked_attention` layers limit it to the token's chunk. There is no dropout,
    because the learner's log-probabilities must match the engine's.

    `softcap` bounds the scores, and `s_aux` [H] are the scores of attention sinks. If there is a softcap, a sink or
    `packing.parents`, `loop_attention` is always used. Otherwise, `attend` defaults to the result of
    `choose_attention`.

    Raises:
        UserError: The model passes its own attention mask, or both softcap and sinks.
    """
    if attention_mask is not None or (softcap is not None and s_aux is not None):
        raise UserError(
            f"{type(module).__name__} uses its own attention mask, which does not separate packed rollouts; use a "
            "model with a supported architecture"
        )
    if (size := _chunk_size(module)) is not None:
        packing = packing.split_chunks(size)
    if softcap is not None or s_aux is not None:
        return loop_attention(query, key, value, packing, scaling, sliding_window, softcap, s_aux), None
    if packing.parents is not None:
        attend = loop_attention
    attend = attend or choose_attention(query.device.type, query.dtype, query.shape[-1])
    return attend(query, key, value, packing, scaling, sliding_window), None


def _chunk_size(module: nn.Module) -> int | None:
    """Return the chunk size of a layer with chunked attention, or None for other layers."""
    layer: Any = module
    kinds = getattr(getattr(layer, "config", None), "layer_types", None) or ()
    chunked = "chunked_attention" in kinds and kinds[layer.layer_idx] == "chunked_attention"
    return layer.config.attention_chunk_size if chunked else None


def choose_attention(device: str, dtype: torch.dtype, head_size: int = 0) -> Attend:
    """Return the fastest exact implementation, as measured with packed rollouts in benchmarks/RESULTS.md."""
    flash = device == "cuda" and dtype in (torch.bfloat16, torch.float16) and head_size <= MAX_FLASH_HEAD_SIZE
    return varlen_attention if flash else loop_attention


def loop_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    packing: Packing,
    scaling: float | None,
    window: int | None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Call `scaled_dot_product_attention` once per sequence; torch chooses the kernel."""
    # split, not slices: its backward pass is one concatenation, while S slices would create S full-size tensors.
    queries, keys, values = (torch.split(tensor, list(packing.lengths), dim=2) for tensor in (q, k, v))
    if packing.parents is not None:
        keys, values = (_prepend_parents(tensors, packing.parents) for tensors in (keys, values))
    sequences = zip(queries, keys, values, strict=True)
    if softcap is not None:
        outputs = [_attend_with_softcap(q, k, v, scaling, window, softcap) for q, k, v in sequences]
    elif sinks is not None:
        outputs = [_attend_with_sinks(q, k, v, scaling, window, packing.masks, sinks) for q, k, v in sequences]
    else:
        outputs = [_attend(q, k, v, scaling, window, packing.masks) for q, k, v in sequences]
    return torch.cat(outputs, dim=2).transpose(1, 2)


def _prepend_parents(parts: Sequence[Tensor], parents: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the keys or values of each sequence, preceded by the keys or values of all its ancestors.

    `parts[i]` has the sequence's own keys or values, and `parents[i]` is the index of its parent. All tensors
    are [1, K, N, D].
    """
    full: list[Tensor] = []
    for part, parent in zip(parts, parents, strict=True):
        full.append(part if parent == NO_PARENT else torch.cat([full[parent], part], dim=2))
    return tuple(full)


def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, packing: Packing, scaling: float | None, window: int | None
) -> Tensor:
    """Call torch's variable-length flash kernel, for half precision on GPUs."""
    groups = q.shape[1] // k.shape[1]
    options: dict[str, Any] = {"enable_gqa": groups > 1} if _FLASH_SUPPORTS_GQA else {}
    if not _FLASH_SUPPORTS_GQA:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    longest, size = max(packing.lengths), v.shape[-1]
    v = functional.pad(v, (0, q.shape[-1] - size))  # the kernel requires equal head sizes
    output: Tensor = varlen_attn(  # type: ignore[assignment]  # it returns a pair only with return_aux
        q[0].transpose(0, 1),
        k[0].transpose(0, 1),
        v[0].transpose(0, 1),
        packing.cu_seqlens,
        packing.cu_seqlens,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        **options,
    )
    return output[None, ..., :size]


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
    masks: dict[Any, Any],
    sink: bool = False,
) -> Tensor:
    """Compute causal attention [1, H, N, D] -> [1, H, N, E] of N queries to M >= N keys.

    Query i has the position of key M - N + i. With a `sink`, the first key is always visible. Masks are cached in
    `masks`, because the backward pass needs them and all layers use the same masks.
    """
    length, num_keys = query.shape[2], key.shape[2]
    window = window or num_keys
    mask = None
    if length < num_keys or window + sink < length:
        shape = (length, num_keys, window, sink, query.dtype)
        if (mask := masks.get(shape)) is None:
            visible = _visible_keys(length, num_keys, window, query.device)
            if sink:
                visible[:, 0] = True
            mask = masks[shape] = query.new_zeros(visible.shape).masked_fill_(~visible, -torch.inf)
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _attend_with_sinks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
    masks: dict[Any, Any],
    sinks: Tensor,
) -> Tensor:
    """Compute attention with an additional first token. Its score is the head's sink, and its value is 0."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (sinks.to(query.dtype) / scaling)[None, :, None, None].expand(*query.shape[:3], 1)
    query = functional.pad(torch.cat([query, scores], dim=-1), (0, 0, 1, 0))
    key, value = functional.pad(key, (0, 1, 1, 0)), functional.pad(value, (0, 0, 1, 0))
    key[:, :, 0, -1] = 1
    return _attend(query, key, value, scaling, window, masks, sink=True)[:, :, 1:]


def _attend_with_softcap(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, softcap: float
) -> Tensor:
    """Compute attention with tanh-bounded scores.

    Torch has no kernel for such scores, so this function holds the scores of all pairs of tokens in memory.
    """
    groups, length, num_keys = query.shape[1] // key.shape[1], query.shape[2], key.shape[2]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    visible = _visible_keys(length, num_keys, window or num_keys, query.device)
    scores = (torch.tanh(scores / softcap) * softcap).masked_fill(~visible, -torch.inf)
    return scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ value


def _visible_keys(length: int, num_keys: int, window: int, device: torch.device) -> Tensor:
    """Return a mask [length, num_keys] of the keys that each token may attend to."""
    before = num_keys - length
    visible = torch.ones(length, num_keys, dtype=torch.bool, device=device)
    return visible.tril_(before).triu_(before + 1 - window)


AttentionInterface.register(ATTENTION_NAME, packed_attention)
