"""The next weights of a model on CPUs, made ready while it samples: the change itself is an exchange of references.

vLLM's own reload fills the running model and packs each layer for its matrix kernels while generation stands still. Here
the same loaders and the same packing work on twins of the modules, which share all with them but the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import materialize_layer, restore_layer_on_meta

OWN = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""What a twin never shares with its module."""
DONE = "_already_called_process_weights_after_loading"
"""By this attribute some layers know that they were packed."""


class NextWeights:
    """Of one model, for one update after the other: `begin`, `load` until all is there, `pack`, `exchange`, `drop`. Only
    `exchange` touches the model, and only it needs generation to stand still."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._model = model
        self._dtype = dtype
        self._twins: dict[nn.Module, nn.Module] = {}
        self._twin = self._twin_of(model)
        self._packed: dict[nn.Module, dict[str, Any]] = {}

    @torch.no_grad()
    def begin(self) -> None:
        """Give the twins empty weights in the form in which they are loaded; tied ones stay tied."""
        tied: dict[int, Any] = {}
        for module, twin in self._twins.items():
            info = get_layerwise_info(module)
            restore_layer_on_meta(twin, info)
            materialize_layer(twin, info)
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.numel():
                    twin._parameters[name] = tied.setdefault(id(parameter), twin._parameters[name])

    @torch.no_grad()
    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take in some tensors, by their names in the checkpoint. They are copied."""
        self._twin.load_weights(tensors)

    @torch.no_grad()
    def pack(self) -> None:
        """Bring what was loaded into the form in which the kernels take it."""
        for module, twin in self._twins.items():
            method = getattr(twin, "quant_method", None)
            if not isinstance(method, QuantizeMethodBase):
                continue
            vars(twin).pop(DONE, None)
            before = dict(vars(twin))
            method.process_weights_after_loading(twin)
            changed = {name for name, value in vars(twin).items() if before.get(name) is not value}
            self._packed[module] = {name: vars(twin)[name] for name in changed - {*OWN, DONE}}

    @torch.no_grad()
    def exchange(self) -> None:
        """Give the new weights to the model, and its old ones to the twins."""
        for module, twin in self._twins.items():
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter.numel():
                    new = twin._parameters[name]
                    parameter.data, new.data = new.data, parameter.data
            packed = self._packed.get(module, {})
            for name, value in packed.items():
                packed[name], vars(module)[name] = vars(module).get(name), value
        for module in self._twins:
            if is_deferred_attention_layer(module):
                module.process_weights_after_loading(self._dtype)

    def drop(self) -> None:
        """Let go what the twins hold."""
        self._packed = {}
        for module, twin in self._twins.items():
            restore_layer_on_meta(twin, get_layerwise_info(module))
            for name in vars(twin).keys() - set(OWN):
                vars(twin)[name] = vars(module).get(name)

    def _twin_of(self, module: nn.Module) -> nn.Module:
        if module not in self._twins:
            twin = self._twins[module] = copy.copy(module)
            for name in OWN:
                vars(twin)[name] = copy.copy(vars(module)[name])
            twin._modules = {name: child and self._twin_of(child) for name, child in module._modules.items()}
        return self._twins[module]
