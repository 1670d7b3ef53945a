"""Ways to compute attention over packed sequences. The learner uses `loop` and `varlen`; the others compute the same.

They are registered with transformers as `packed_loop`, `packed_flex` and so on.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface

from agent_rft.trainer.model.packed_attention import (
    ATTENTION_NAME,
    Attend,
    Packing,
    choose_attention,
    loop_attention,
    packed_attention,
    varlen_attention,
)


def _cudnn(q: Tensor, k: Tensor, v: Tensor, packing: Packing, scaling: float | None, window: int | None) -> Tensor:
    """The loop with cuDNN's kernels, which use more of a Hopper GPU than torch's flash kernels."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        groups = q.shape[1] // k.shape[1]
        with_groups = torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, True, True)
        if groups > 1 and not torch.backends.cuda.can_use_cudnn_attention(with_groups):
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        return loop_attention(q, k, v, packing, scaling, window)


def _mask(q: Tensor, k: Tensor, v: Tensor, packing: Packing, scaling: float | None, window: int | None) -> Tensor:
    """One `scaled_dot_product_attention` with a mask of N x N bytes, which computes the masked scores too."""
    if window not in packing.masks:
        tokens = torch.arange(q.shape[2], device=q.device)
        packing.masks[window] = _mask_of(packing, window)(None, None, tokens[:, None], tokens)
    groups = q.shape[1] // k.shape[1]  # on GPUs, no kernel with a mask takes groups
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    output = functional.scaled_dot_product_attention(q, k, v, attn_mask=packing.masks[window], scale=scaling)
    return output.transpose(1, 2)


def _flex(q: Tensor, k: Tensor, v: Tensor, packing: Packing, scaling: float | None, window: int | None) -> Tensor:
    """Flex attention with a block mask, compiled on GPUs."""
    flex, block_mask = _flex_functions(q.is_cuda)
    if window not in packing.masks:
        packing.masks[window] = block_mask(_mask_of(packing, window), None, None, q.shape[2], q.shape[2], q.device)
    options = {"scale": scaling, "enable_gqa": q.shape[1] != k.shape[1]}
    output: Tensor = flex(q, k, v, block_mask=packing.masks[window], **options)
    return output.transpose(1, 2)


def _package(q: Tensor, k: Tensor, v: Tensor, packing: Packing, scaling: float | None, window: int | None) -> Tensor:
    """The kernel of the package flash-attn, where it is installed."""
    longest, size = max(packing.lengths), v.shape[-1]
    v = functional.pad(v, (0, q.shape[-1] - size))
    output: Tensor = importlib.import_module("flash_attn").flash_attn_varlen_func(
        *(tensor[0].transpose(0, 1) for tensor in (q, k, v)),
        packing.cu_seqlens,
        packing.cu_seqlens,
        longest,
        longest,
        softmax_scale=scaling,
        causal=True,
        window_size=(-1 if window is None else window - 1, 0),
    )
    return output[None, ..., :size]


@functools.cache
def _flex_functions(compiled: bool) -> tuple[Any, Any]:
    """`flex_attention` and `create_block_mask`; uncompiled they hold N x N scores, which is right for tests only."""
    module = importlib.import_module("torch.nn.attention.flex_attention")  # imports torch's compiler
    functions = module.flex_attention, module.create_block_mask
    return (torch.compile(functions[0]), torch.compile(functions[1])) if compiled else functions


def _mask_of(packing: Packing, window: int | None) -> Callable[[Tensor | None, Tensor | None, Tensor, Tensor], Tensor]:
    starts = packing.cu_seqlens
    lengths = starts.diff().long()
    number = torch.repeat_interleave(lengths, output_size=sum(packing.lengths))  # of each token's sequence

    def sees(batch: Tensor | None, head: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
        seen = (query >= key) & (number[query] == number[key])
        return seen if window is None else seen & (query - key < window)

    return sees


BACKENDS: dict[str, Attend] = {
    "loop": loop_attention,
    "cudnn": _cudnn,
    "varlen": varlen_attention,
    "mask": _mask,
    "flex": _flex,
    "package": _package,
}


def backends_on(device: str) -> list[str]:
    """Return the names of the `BACKENDS` that can train on a device."""
    if device == "cpu":
        return ["loop", "mask"]
    return [name for name in BACKENDS if name != "package" or importlib.util.find_spec("flash_attn") is not None]


def default_backend(device: str, dtype: torch.dtype) -> str:
    """Return the name of the learner's own choice."""
    chosen = choose_attention(device, dtype)
    return next(name for name, attend in BACKENDS.items() if attend is chosen)


for _name, _attend in BACKENDS.items():
    AttentionInterface.register(f"{ATTENTION_NAME}_{_name}", functools.partial(packed_attention, attend=_attend))
