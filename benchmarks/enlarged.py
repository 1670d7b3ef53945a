"""The same agent at the cost of a larger model: layers and widths are added that change nothing.

What is added reads the residual stream but writes zeros to it, so the larger model computes the same logits up to
rounding, and an agent that was trained for seconds on two cores has the rollouts that it has, at another engine cost.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

SILENT = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""What writes a layer's output into the residual stream."""
OVER_WIDTH = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight")
"""Norms over the model's width: their mean square falls when zeros are added."""


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of an enlarged model; None: as in the model itself. All heads have their own keys and values."""

    layers: int | None = None
    hidden: int | None = None
    intermediate: int | None = None
    heads: int | None = None

    @property
    def options(self) -> list[str]:
        """The command line options for this size."""
        sizes = {"layers": self.layers, "hidden": self.hidden, "intermediate": self.intermediate, "heads": self.heads}
        return [text for name, size in sizes.items() if size is not None for text in (f"--{name}", str(size))]


OWN_SIZE = Size()


def add_size_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("size of an equivalent but larger base model (default: its own)")
    for name in ("layers", "hidden", "intermediate", "heads"):
        group.add_argument(f"--{name}", type=int)


def size_of(options: argparse.Namespace) -> Size:
    return Size(options.layers, options.hidden, options.intermediate, options.heads)


def enlarged(model: Path, size: Size, folder: Path, dtype: str = "float32") -> str:
    """Save a model in `folder` that computes what `model`, a Qwen3, computes; returns the folder."""
    small = AutoModelForCausalLM.from_pretrained(model)
    config = AutoConfig.from_pretrained(model)
    narrow, kept = config.hidden_size, config.num_hidden_layers
    config.num_hidden_layers = size.layers or kept
    config.layer_types = config.layer_types[:1] * config.num_hidden_layers
    config.hidden_size = size.hidden or narrow
    config.intermediate_size = size.intermediate or config.intermediate_size
    if size.heads is not None:
        config.num_attention_heads = config.num_key_value_heads = size.heads
    large = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    source = dict(small.named_parameters())
    with torch.no_grad():
        for name, parameter in large.named_parameters():
            if name in source:
                scale = math.sqrt(narrow / config.hidden_size) if name.endswith(OVER_WIDTH) else 1.0
                _put(parameter, source[name] * scale)
            elif name.endswith(SILENT):
                parameter.zero_()
    large.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return str(folder)


def _put(target: Tensor, source: Tensor) -> None:
    """Put `source` into the first rows and columns of `target`, with zeros elsewhere."""
    target.zero_()
    target[tuple(slice(0, size) for size in source.shape)] = source
