"""Causal attention over packed sequences: no token sees another sequence. Registered with transformers as "packed".

On a GPU in half precision it is one variable-length flash kernel, elsewhere one `scaled_dot_product_attention` per
sequence. That loop needs no padding and no mask, which on a CPU is faster than padded batches. `benchmarks.gpu`
compares them with other ways to compute the same.
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

NAME = "packed"
"""As transformers' `attn_implementation`."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Where S sequences lie in N packed tokens: lengths (S numbers, sum N), cu_seqlens [S + 1] int32 on the device.

    With `parents`, S numbers, a sequence continues an earlier one, whose tokens it sees too (`PrefixTree`). The loop
    computes that, but for chunked attention. `masks` holds the masks that the loop needs, such as those by sliding
    window, and `chunks` the packings of chunked attention, by size: each is made at the first use by a layer, and used
    by all. `experts` [N, L, k] int64 are for `router_replay`.
    """

    lengths: tuple[int, ...]
    cu_seqlens: Tensor
    experts: Tensor | None = None
    parents: tuple[int, ...] | None = None
    masks: dict[Any, Any] = field(default_factory=dict, compare=False)
    chunks: dict[int, Packing] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        device: torch.device,
        experts: Tensor | None = None,
        parents: tuple[int, ...] | None = None,
    ) -> Packing:
        starts = torch.tensor([0, *lengths]).cumsum(0)
        return cls(tuple(lengths), starts.to(device, torch.int32), experts, parents)

    def chunked(self, size: int) -> Packing:
        """Each chunk of `size` tokens of a sequence as a sequence of its own."""
        if size not in self.chunks:
            lengths = [min(size, length - start) for length in self.lengths for start in range(0, length, size)]
            self.chunks[size] = Packing.of(lengths, self.cu_seqlens.device)
        return self.chunks[size]


_FLASH_TAKES_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""True from torch 2.12 on."""
FLASH_HEAD_SIZE = 256
"""Larger heads, as in the full attention of Gemma 4, have no flash kernel."""

Attend = Callable[[Tensor, Tensor, Tensor, Packing, float | None, int | None], Tensor]
"""query [1, H, N, D], key and value [1, K, N, D], packing, scaling and sliding window -> [1, N, H, D]."""


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
    """An attention function for transformers' `AttentionInterface`.

    query [1, H, N, D], key [1, K, N, D] and value [1, K, N, E] with K dividing H -> [1, N, H, E]. A token attends to
    itself and to earlier tokens of its own sequence; with `sliding_window` W, to the last W of these, itself included;
    in layers of `chunked_attention`, to those in its chunk. `softcap` bounds the scores, `s_aux` [H] are the scores of
    attention sinks. There is no dropout, because the learner's log-probabilities must match the engine's. `attend`
    replaces the fastest exact way to compute it; softcap and sinks have only the loop.

    Raises:
        UserError: The model makes an attention mask of its own.
    """
    if attention_mask is not None or (softcap is not None and s_aux is not None):
        raise UserError(
            f"{type(module).__name__} makes an attention mask of its own, in which packed rollouts would see each other"
        )
    if (size := _chunk_size(module)) is not None:
        packing = packing.chunked(size)
    if softcap is not None or s_aux is not None:
        return loop_attention(query, key, value, packing, scaling, sliding_window, softcap, s_aux), None
    if packing.parents is not None:
        attend = loop_attention
    attend = attend or choose_attention(query.device.type, query.dtype, query.shape[-1])
    return attend(query, key, value, packing, scaling, sliding_window), None


def _chunk_size(module: nn.Module) -> int | None:
    """The chunks of a layer of Llama 4, which transformers hands on in masks only."""
    layer: Any = module
    kinds = getattr(getattr(layer, "config", None), "layer_types", None) or ()
    chunked = "chunked_attention" in kinds and kinds[layer.layer_idx] == "chunked_attention"
    return layer.config.attention_chunk_size if chunked else None


def choose_attention(device: str, dtype: torch.dtype, head_size: int = 0) -> Attend:
    """Return the fastest exact way, as measured on CPUs and on an H100 with packed rollouts (benchmarks/RESULTS.md)."""
    flash = device == "cuda" and dtype in (torch.bfloat16, torch.float16) and head_size <= FLASH_HEAD_SIZE
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
    """One `scaled_dot_product_attention` per sequence; torch chooses its kernel."""
    # split, not slices: the backward pass of a split is one concatenation, that of S slices is S full-size tensors.
    queries, keys, values = (torch.split(tensor, list(packing.lengths), dim=2) for tensor in (q, k, v))
    if packing.parents is not None:
        keys, values = (_with_parents(tensors, packing.parents) for tensors in (keys, values))
    sequences = zip(queries, keys, values, strict=True)
    if softcap is not None:
        outputs = [_capped(q, k, v, scaling, window, softcap) for q, k, v in sequences]
    elif sinks is not None:
        outputs = [_with_sinks(q, k, v, scaling, window, packing.masks, sinks) for q, k, v in sequences]
    else:
        outputs = [_attend(q, k, v, scaling, window, packing.masks) for q, k, v in sequences]
    return torch.cat(outputs, dim=2).transpose(1, 2)


def _with_parents(parts: Sequence[Tensor], parents: Sequence[int]) -> tuple[Tensor, ...]:
    """Keys or values of each sequence [1, K, N, D] after those of the sequences that it continues."""
    whole: list[Tensor] = []
    for part, parent in zip(parts, parents, strict=True):
        whole.append(part if parent == NO_PARENT else torch.cat([whole[parent], part], dim=2))
    return tuple(whole)


def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, packing: Packing, scaling: float | None, window: int | None
) -> Tensor:
    """Torch's variable-length flash kernel, for half precision on GPUs."""
    groups = q.shape[1] // k.shape[1]
    options: dict[str, Any] = {"enable_gqa": groups > 1} if _FLASH_TAKES_GROUPS else {}
    if not _FLASH_TAKES_GROUPS:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    longest, size = max(packing.lengths), v.shape[-1]
    v = functional.pad(v, (0, q.shape[-1] - size))  # the kernel has one size for all heads
    output: Tensor = varlen_attn(  # type: ignore[assignment]  # a pair only with return_aux
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
    """Causal attention [1, H, N, D] -> [1, H, N, E]; the queries are those of the last N of M keys.

    With a `sink`, no window hides the first key. Masks are kept in `masks`: the backward pass needs them, and those of
    all layers are the same.
    """
    length, num_keys = query.shape[2], key.shape[2]
    window = window or num_keys
    mask = None
    if length < num_keys or window + sink < length:
        shape = (length, num_keys, window, sink, query.dtype)
        if (mask := masks.get(shape)) is None:
            seen = _seen(length, num_keys, window, query.device)
            if sink:
                seen[:, 0] = True
            mask = masks[shape] = query.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _with_sinks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
    masks: dict[Any, Any],
    sinks: Tensor,
) -> Tensor:
    """Attention to one more token that comes before all others: its score is the head's sink, its value 0.

    One more number in each query holds the score, so that any kernel computes it, and its gradient.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (sinks.to(query.dtype) / scaling)[None, :, None, None].expand(*query.shape[:3], 1)
    query = functional.pad(torch.cat([query, scores], dim=-1), (0, 0, 1, 0))
    key, value = functional.pad(key, (0, 1, 1, 0)), functional.pad(value, (0, 0, 1, 0))
    key[:, :, 0, -1] = 1
    return _attend(query, key, value, scaling, window, masks, sink=True)[:, :, 1:]


def _capped(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, softcap: float
) -> Tensor:
    """Attention whose scores are bounded by tanh, with all of them at once: torch has no kernel for it."""
    groups, length, num_keys = query.shape[1] // key.shape[1], query.shape[2], key.shape[2]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    seen = _seen(length, num_keys, window or num_keys, query.device)
    scores = (torch.tanh(scores / softcap) * softcap).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ value


def _seen(length: int, num_keys: int, window: int, device: torch.device) -> Tensor:
    """Which keys the last `length` tokens see [N, M] bool: those before each and itself, `window` at most."""
    before = num_keys - length
    seen = torch.ones(length, num_keys, dtype=torch.bool, device=device)
    return seen.tril_(before).triu_(before + 1 - window)


AttentionInterface.register(NAME, packed_attention)
