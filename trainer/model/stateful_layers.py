"""Stateful layers, which run once per packed sequence.

Linear attention, state-space models and short convolutions carry a state from token to token, and thus from one packed
sequence into the next. Kernels that support packed sequences exist only on some GPUs. Running the layer once per
sequence is exact on any device.
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
"""Parameters of a mixer's `forward` method that hold the mixer's state during generation."""


def separate_sequences(model: nn.Module) -> list[nn.Module]:
    """Make the stateful mixers of `model`, such as linear attention, run once per sequence; return the mixers.

    A layer that contains a mixer must be called with a `packing`, like a layer with attention.
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
    """Return whether a mixer carries a state from token to token.

    Attention modules carry no state. They are recognized by their attribute `is_causal`.
    """
    return not hasattr(mixer, "is_causal") and not _STATE.isdisjoint(inspect.signature(mixer.forward).parameters)


class _PerSequence:
    """Replacement for a mixer's forward: runs each sequence separately and concatenates the outputs [1, N, D]."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward
        self._packing: Packing | None = None

    def start(self, _: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Store the packing before each forward pass of the layer, including passes repeated by gradient checkpointing.

        The packing must be stored because not every layer passes the packing on to its mixer.
        """
        self._packing = kwargs["packing"]

    def __call__(self, *args: Any, packing: Packing | None = None, **kwargs: Any) -> Any:
        assert self._packing is not None
        lengths = self._packing.lengths
        parts = zip(_split(args, lengths), _split(kwargs, lengths), strict=True)
        outputs = [self._forward(*some, **named) for some, named in parts]
        if isinstance(outputs[0], tuple):  # the others are states, which are unused in training
            return torch.cat([output[0] for output in outputs], dim=1), *(None for _ in outputs[0][1:])
        return torch.cat(outputs, dim=1)


def _split(value: Any, lengths: tuple[int, ...]) -> list[Any]:
    """Split the tensors [1, N, ...] in `value` by sequence, and repeat all other content for each sequence."""
    if isinstance(value, Tensor) and value.ndim > 1 and value.shape[1] == sum(lengths):
        return list(torch.split(value, list(lengths), dim=1))
    if isinstance(value, tuple):
        return list(zip(*(_split(item, lengths) for item in value), strict=True)) or [()] * len(lengths)
    if isinstance(value, dict):
        parts = {name: _split(item, lengths) for name, item in value.items()}
        return [{name: part[number] for name, part in parts.items()} for number in range(len(lengths))]
    return [value] * len(lengths)
