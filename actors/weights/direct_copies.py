"""Weights that a model of vLLM copies straight into its parameters, such as the experts of gpt_oss, in an update.

While an update runs, parameters have no memory (vLLM's layer-wise reloading): their loaders keep what they get until a
layer is complete. A direct copy would be lost without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from vllm.model_executor.model_loader.reload.layerwise import make_online_process_loader
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

_DATA: Callable[..., Any] = Tensor.data.__get__  # type: ignore[attr-defined]


class DirectCopies(TorchFunctionMode):
    """While it is entered, copies into parameters and buffers without memory go to a loader that keeps them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._places: dict[int, tuple[Any, nn.Module, str]] = {
            id(held): (held, module, name)  # the tensor too, or another one may get its id
            for module in model.modules()
            for name, held in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        }
        self._handed = ""
        self._is_loading = False
        self.copied: set[str] = set()
        """Names of the tensors that were copied so, or of which a part was."""

    def watched(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The tensors, of which a model copies one before it asks for the next."""
        for self._handed, tensor in tensors:
            yield self._handed, tensor

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """Copies that a loader makes inside are its own: into a parameter without memory, they only count elements."""
        before, self._is_loading = self._is_loading, True
        try:
            yield
        finally:
            self._is_loading = before

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        place = self._places.get(id(args[0])) if args and not self._is_loading else None
        if place is not None and func == _DATA:
            return args[0]  # so that `parameter.data.copy_` is `parameter.copy_`
        if place is not None and func is Tensor.copy_:
            held, module, name = place
            self.copied.add(self._handed)
            if held.is_meta:
                held.weight_loader = default_weight_loader
                held.weight_loader = make_online_process_loader(module, name)
                return held.weight_loader(held, args[1])
            return held.data.copy_(args[1])
        return func(*args, **(kwargs or {}))
