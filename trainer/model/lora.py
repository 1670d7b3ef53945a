"""LoRA with PEFT: small trained matrices that are added to a policy's frozen weights (Hu et al. 2021, "LoRA").

If a job continues an adapter, a policy can hold two adapters: the adapter that is trained, and the frozen adapter of
the reference model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from peft import LoraConfig, LoraModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from agent_rft.errors import UserError
from agent_rft.spec.model_options import LoraSpec
from agent_rft.trainer.model.policy import Policy

TRAINED, REFERENCE = "default", "start"
PREFIX = "base_model.model."
"""Prefix of module names in PEFT's files."""
LinearShapes = Mapping[str, tuple[int, int]]
"""Numbers of inputs and outputs of linear layers, by layer name."""


def add_adapter(
    policy: Policy,
    lora: LoraSpec,
    seed: int,
    start: Mapping[str, Tensor] | None = None,
    *,
    keeps_reference: bool = False,
) -> None:
    """Freeze the policy's weights, and add an adapter to train: a copy of `start`, or a new adapter.

    A new adapter does not change the policy's results yet. It is initialized from `seed`, identically on all ranks.
    With `keeps_reference`, a second, frozen copy of `start` is added for `as_reference`.

    Raises:
        UserError: A target matches no linear layer, or `start` does not fit the model.
    """
    modules = find_adapted_layers(policy.model, lora)
    names = [TRAINED, REFERENCE] if start is not None and keeps_reference else [TRAINED]
    # Full names, because the policy has no transformers config. With a config, PEFT would adapt fused experts instead
    # of the dense layers that are named like parts of the experts.
    targets = [f"model.{name}" for name in modules]
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=0.0)  # type: ignore[arg-type]  # PEFT computes with any number
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tuner = LoraModel(policy, dict.fromkeys(names, config), TRAINED)
        for name in names[1:]:
            tuner.inject_adapter(policy, name)
    policy.requires_grad_(False)
    for layer in _layers(policy):
        layer.set_adapter(names)
    for name in names:
        tensors = get_adapter_tensors(policy, name)
        if start is not None:
            _fill(tensors, start)
        for tensor in tensors.values():
            tensor.data = tensor.data.to(policy.model.dtype)  # PEFT prefers float32, engines do not
            tensor.requires_grad_(name == TRAINED)
    _compute_with(policy, TRAINED)


def find_adapted_layers(model: PreTrainedModel, lora: LoraSpec) -> dict[str, nn.Linear]:
    """Return the layers that `lora` adapts, by name. The model may be on the meta device.

    Raises:
        UserError: A target matches no linear layer.
    """
    adaptable = _adaptable_layers(model)
    linear = {name: module for name, module in model.named_modules() if module in adaptable}
    if lora.targets == "all-linear":
        return linear
    found: dict[str, nn.Linear] = {}
    for target in lora.targets:
        matching = {name: m for name, m in linear.items() if name == target or name.endswith(f".{target}")}
        if not matching:
            problem, fix = (
                f"no linear layer of the model is named {target!r}",
                f"use {', '.join(_last_parts(linear))}",
            )
            raise UserError(f"{problem}; {fix}", problem=problem, fix=fix)
        found |= matching
    return found


def _adaptable_layers(model: PreTrainedModel) -> set[nn.Linear]:
    """Return the language model's linear layers that an adapter can change.

    Excludes the output head and subclasses of Linear (such as routers). Also excludes the output layer of Mamba mixers,
    because the GPU kernels of the mixers would bypass an adapter there.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    kernel_layers = {m.out_proj for m in decoder.modules() if hasattr(m, "A_log") and hasattr(m, "D")}
    return {m for m in decoder.modules() if type(m) is nn.Linear and m is not head} - kernel_layers


def find_linear_shapes(config: PreTrainedConfig, lora: LoraSpec) -> LinearShapes:
    """Return the numbers of inputs and outputs of each layer that `lora` adapts, from the model's config alone.

    Raises:
        UserError: A target matches no linear layer.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return {name: (m.in_features, m.out_features) for name, m in find_adapted_layers(model, lora).items()}


def tensor_shapes(layers: LinearShapes, rank: int) -> dict[str, tuple[int, int]]:
    """Return the shapes of an adapter's tensors, keyed by their names in PEFT's files."""
    shapes: dict[str, tuple[int, int]] = {}
    for name, (inputs, outputs) in layers.items():
        shapes |= {f"{PREFIX}{name}.lora_A.weight": (rank, inputs), f"{PREFIX}{name}.lora_B.weight": (outputs, rank)}
    return shapes


def expand_targets(policy: Policy, lora: LoraSpec) -> tuple[str, ...]:
    """Return the layer names for PEFT's `target_modules`.

    "all-linear" is expanded here, because PEFT's own expansion depends on the model's head.
    """
    if lora.targets != "all-linear":
        return lora.targets
    return tuple(_last_parts(name for name, module in policy.model.named_modules() if isinstance(module, LoraLayer)))


def get_adapter_tensors(policy: Policy, name: str = TRAINED) -> dict[str, nn.Parameter]:
    """Return the parameters of the policy's adapter `name`, keyed by their names in PEFT's files."""
    marker = f".{name}.weight"
    return {
        PREFIX + key.removesuffix(marker) + ".weight": tensor
        for key, tensor in policy.model.named_parameters()
        if key.endswith(marker) and key.removesuffix(marker).endswith((".lora_A", ".lora_B"))
    }


@contextmanager
def as_reference(policy: Policy) -> Iterator[None]:
    """Context manager in which the policy behaves like the reference model.

    The trained adapter still runs, but its output is scaled by 0. ZeRO-3 therefore sees the same layers in each pass,
    and the `requires_grad` of every parameter stays the same.
    """
    _compute_with(policy, REFERENCE)
    try:
        yield
    finally:
        _compute_with(policy, TRAINED)


def _compute_with(policy: Policy, adapter: str) -> None:
    for layer in _layers(policy):
        for name in layer.scaling:
            layer.set_scale(name, float(name == adapter))


def _layers(policy: Policy) -> list[LoraLayer]:
    return [module for module in policy.modules() if isinstance(module, LoraLayer)]


def _fill(tensors: Mapping[str, nn.Parameter], start: Mapping[str, Tensor]) -> None:
    wrong = sorted(
        {*tensors.keys() ^ start.keys()}
        | {name for name in tensors.keys() & start.keys() if tensors[name].shape != start[name].shape}
    )
    if wrong:
        raise UserError(
            f"the adapter does not fit the model: {len(wrong)} tensors are missing or have another shape, for example "
            f"{wrong[0]}; use an adapter that was trained on this model"
        )
    for name, tensor in tensors.items():
        tensor.data.copy_(start[name])


def _last_parts(modules: Iterable[str]) -> list[str]:
    """Return the distinct last parts of the modules' names, in order."""
    return list(dict.fromkeys(name.rpartition(".")[2] for name in modules))
