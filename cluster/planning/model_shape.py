"""A model's sizes, by which memory is reckoned: from config.json and the headers of its weights; no weight is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Widths are per token: `intermediate` is that of all experts which a token goes through."""

    num_parameters: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int

    @property
    def query(self) -> int:
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """The width of keys, which is that of values."""
        return self.kv_heads * self.head_dim


def shape_of(path: Path, config: Any) -> ModelShape:
    """Of the model in a folder, `config` being its transformers configuration."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    experts = getattr(text, "num_experts_per_tok", None) or 1
    width = (getattr(text, "moe_intermediate_size", None) if experts > 1 else None) or text.intermediate_size
    return ModelShape(
        num_parameters=_num_parameters(path, text),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        intermediate=experts * width,
        vocabulary=text.vocab_size,
    )


def weight_files(path: Path) -> list[Path]:
    return sorted([*path.glob("*.safetensors"), *path.glob("*.bin")])


def _num_parameters(path: Path, config: Any) -> int:
    """What the headers of safetensors say; of other files their size, which is near enough."""
    itemsize = getattr(config.dtype, "itemsize", 4)
    total = 0
    for file in weight_files(path):
        if file.suffix == ".safetensors":
            with safe_open(file, framework="np") as tensors:
                total += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
        else:
            total += file.stat().st_size // itemsize
    return total
