"""Layers that carry a state from token to token see one packed sequence at a time.

Linear attention, state-space models and short convolutions read the tokens before in order, whichever sequence they
are of. Kernels for packed ones exist on some GPUs only, so the layer runs once per sequence: exact on any device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from agent_rft.trainer.model.packed_attention import Packing

_STATE = {"cache_params", "past_key_values"}
"""How a mixer's forward names the state that it carries on when it generates."""


def separate_sequences(model: nn.Module) -> list[nn.Module]:
    """Let the mixers of `model` that carry a state run per sequence, and return them.

    The layers must be called with a `packing`, as those with attention are.
    """
    mixers = []
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            for mixer in filter(carries_state, layer.children()):
                forward = _PerSequence(mixer.forward)
                layer.register_forward_pre_hook(forward.start, with_kwargs=True)
                mixer.forward = forward
                mixers.append(mixer)
    return mixers


def carries_state(mixer: nn.Module) -> bool:
    """Whether it reads earlier tokens without transformers' attention interface, whose modules have `is_causal`."""
    return not hasattr(mixer, "is_causal") and not _STATE.isdisjoint(inspect.signature(mixer.forward).parameters)


class _PerSequence:
    """The forward of a mixer: what it returns for each sequence alone, one after the other [1, N, D]."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward
        self._packing: Packing | None = None

    def start(self, _: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Before each pass of the layer, also those that recompute it: not every layer hands the packing on."""
        self._packing = kwargs["packing"]

    def __call__(self, *args: Any, packing: Packing | None = None, **kwargs: Any) -> Any:
        assert self._packing is not None
        lengths = self._packing.lengths
        parts = zip(_split(args, lengths), _split(kwargs, lengths), strict=True)
        outputs = [self._forward(*some, **named) for some, named in parts]
        if isinstance(outputs[0], tuple):  # the rest are states, which nobody reads in training
            return torch.cat([output[0] for output in outputs], dim=1), *(None for _ in outputs[0][1:])
        return torch.cat(outputs, dim=1)


def _split(value: Any, lengths: tuple[int, ...]) -> list[Any]:
    """The parts of tensors [1, N, ...] in `value` for each sequence; whatever else is in it is the same for all."""
    if isinstance(value, Tensor) and value.ndim > 1 and value.shape[1] == sum(lengths):
        return list(torch.split(value, list(lengths), dim=1))
    if isinstance(value, tuple):
        return list(zip(*(_split(item, lengths) for item in value), strict=True)) or [()] * len(lengths)
    if isinstance(value, dict):
        parts = {name: _split(item, lengths) for name, item in value.items()}
        return [{name: part[number] for name, part in parts.items()} for number in range(len(lengths))]
    return [value] * len(lengths)
