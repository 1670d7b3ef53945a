"""Router replay: for each token, the learner uses the experts that the engine chose for it.

Engine and learner round differently. If two experts have close scores, a router may therefore choose different experts
in the engine and in the learner, and the two would compute different functions. With the engine's choices, they compute
the same function. Gradients flow through the weights that the learner's router gives to these experts. Source: rollout
routing replay, Ma et al. 2025, arXiv:2510.11370.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer

_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts")


def num_experts(config: PreTrainedConfig) -> int:
    """Return the number of experts in each MoE layer of the language model; 0 if there are no experts."""
    return next((number for name in _NUM_EXPERTS if (number := getattr(config, name, None))), 0)


def experts_per_token(config: PreTrainedConfig) -> int:
    """Return the number of experts that a router chooses for each token; 0 if there are no experts."""
    return next((number for name in _PER_TOKEN if (number := getattr(config, name, None))), 0)


def replay_routers(decoder: nn.Module, config: PreTrainedConfig) -> None:
    """Make each layer of `decoder` use the experts in the layer's `packing` argument.

    If `packing.experts` is None, the layer chooses the experts itself.
    """
    if (experts := num_experts(config)) == 0:
        return
    layers = (module for module in decoder.modules() if isinstance(module, GradientCheckpointingLayer))
    for number, layer in enumerate(layers):
        layer.forward = _ReplayedForward(layer.forward, number, experts)


class _ReplayedForward:
    """Replacement for the forward method of layer `number`. It is also used when activations are recomputed."""

    def __init__(self, forward: Callable[..., Any], number: int, num_experts: int) -> None:
        self._forward = forward
        self._number = number
        self._num_experts = num_experts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        experts = kwargs["packing"].experts
        if experts is None:
            return self._forward(*args, **kwargs)
        with _FixedTopK(experts[:, self._number], self._num_experts):
            return self._forward(*args, **kwargs)


class _FixedTopK(TorchFunctionMode):
    """Context manager in which a router chooses `experts` [N, k] for its N tokens.

    All routers choose experts with `torch.topk`, so the context manager replaces the result of `topk` on router scores.
    If the experts of a token are -1, the router's own choice is used.
    """

    def __init__(self, experts: Tensor, num_experts: int) -> None:
        super().__init__()
        self._experts = experts
        self._num_experts = num_experts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.topk, Tensor.topk) and args[0].shape == (len(self._experts), self._num_experts):
            experts = self._experts
            if (experts < 0).any():
                experts = torch.where(experts < 0, func(*args, **(kwargs or {}))[1], experts)
            return torch.return_types.topk((args[0].gather(1, experts), experts))
        return func(*args, **(kwargs or {}))
