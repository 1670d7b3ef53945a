"""What one sequence takes in an engine's cache, by the kinds of a model's layers, as config.json names them.

Layers of full attention keep a key and a value of each token; those with a sliding window, of the last tokens only;
linear attention, state-space layers and convolutions, a state of constant size. Multi-head latent attention keeps one
compressed vector a token instead (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

FULL = {"full_attention", "attention", "global_attention", "*"}
WINDOWED = {"sliding_attention", "chunked_attention", "local_attention"}
NO_MIXER = {"mlp", "moe", "-", "E"}
"""Layers of hybrid models that are only feed-forward."""
STATES = (
    ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    ("mamba_n_heads", "mamba_d_head", "mamba_d_state"),
    ("mamba_num_heads", "mamba_head_dim", "ssm_state_size"),
    ("num_attention_heads", "head_dim", "head_dim"),
)
"""Keys whose product is the number of elements of a layer's state: Qwen3-Next, Granite 4, Nemotron-H, MiniMax-01."""
CONVOLUTION = ("hidden_size", "conv_L_cache")
STATE_ITEMSIZE = 4
CACHE_KEYS = (
    *("layer_types", "layers_block_type", "hybrid_override_pattern", "sliding_window", "use_sliding_window"),
    *("attention_chunk_size", "kv_lora_rank", "qk_rope_head_dim", "conv_L_cache"),
    *dict.fromkeys(key for keys in STATES for key in keys),
)


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The layers that keep all tokens, and those that keep the last `window`; `width` is the elements of a token."""

    full_layers: int
    window_layers: int
    window: int
    heads: int
    """Among which tensor parallelism splits `width`; 1 for a latent vector, which each GPU holds."""
    width: int
    state_bytes: int = 0
    """Bytes of all other layers together, whatever the length of the sequence."""

    def sequence_bytes(self, num_tokens: int, itemsize: int, gpus: int = 1) -> int:
        """Bytes on each of an engine's GPUs; each holds at least one head (Kwon et al. 2023, PagedAttention)."""
        tokens = self.full_layers * num_tokens + self.window_layers * min(num_tokens, self.window)
        width = self.width // self.heads * max(1, self.heads // gpus)
        return tokens * width * itemsize + self.state_bytes // gpus


def cache_shape(config: Mapping[str, Any], layers: int, kv_heads: int, head_dim: int) -> CacheShape:
    """The shape that config.json describes; without kinds of layers all have full attention."""
    kinds = kinds_of_layers(config, layers)
    full = sum(kind in FULL for kind in kinds)
    windowed = sum(kind in WINDOWED for kind in kinds)
    others = layers - full - windowed - sum(kind in NO_MIXER for kind in kinds)
    window = config.get("sliding_window") or config.get("attention_chunk_size") or 0
    if latent := config.get("kv_lora_rank"):
        heads, width = 1, latent + (config.get("qk_rope_head_dim") or 0)
    else:
        heads, width = kv_heads, 2 * kv_heads * head_dim
    return CacheShape(full, windowed, window, heads, width, others * _state_bytes(config))


def kinds_of_layers(config: Mapping[str, Any], layers: int) -> list[str]:
    """The kind of each layer, as config.json names it."""
    if kinds := config.get("layer_types") or config.get("layers_block_type"):
        return list(kinds)
    if pattern := config.get("hybrid_override_pattern"):
        return list(pattern)
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True) is not False
    return ["sliding_attention" if windowed else "full_attention"] * layers


def _state_bytes(config: Mapping[str, Any]) -> int:
    """The state of one layer in float32; 0 if no known keys say its size."""
    for keys in (CONVOLUTION, *STATES):
        sizes = [config.get(key) for key in keys]
        if all(isinstance(size, int) for size in sizes):
            return STATE_ITEMSIZE * prod(size for size in sizes if isinstance(size, int))
    return 0
