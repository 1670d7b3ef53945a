"""Model sizes, and the cache size of a sequence, read from config.json and the headers of the weight files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from agent_rft.trainer.learner.weight_buckets import ITEMSIZES

if TYPE_CHECKING:  # pydantic may be missing where this runs
    from agent_rft.spec.model_options import LoraSpec

FULL = {"full_attention", "attention", "global_attention", "*"}
WINDOWED = {"sliding_attention", "chunked_attention", "local_attention"}
NO_MIXER = {"mlp", "moe", "-", "E"}
"""Types of layers in hybrid models that have only a feed-forward part and therefore no cache."""
STATES = (
    ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    ("mamba_n_heads", "mamba_d_head", "mamba_d_state"),
    ("mamba_num_heads", "mamba_head_dim", "ssm_state_size"),
    ("num_attention_heads", "head_dim", "head_dim"),
)
"""Groups of keys in config.json; the product of a group's values is the number of elements in a layer's state.

The groups are for Qwen3-Next, Granite 4, Nemotron-H and MiniMax-01, in this order.
"""
CONVOLUTION = ("hidden_size", "conv_L_cache")
STATE_ITEMSIZE = 4
CACHE_KEYS = (
    *("layer_types", "layers_block_type", "hybrid_override_pattern", "sliding_window", "use_sliding_window"),
    *("attention_chunk_size", "kv_lora_rank", "qk_rope_head_dim", "conv_L_cache"),
    *dict.fromkeys(key for keys in STATES for key in keys),
)


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Sizes of a model's cache.

    `full_layers` is the number of layers that cache all tokens. `window_layers` is the number of layers that cache only
    the last `window` tokens. `width` is the number of elements that each of these layers caches per token.
    """

    full_layers: int
    window_layers: int
    window: int
    heads: int
    """Number of key-value heads. Tensor parallelism divides them among the GPUs.

    The number is 1 for a model that caches a latent vector, because each GPU holds the full vector.
    """
    width: int
    state_bytes: int = 0
    """Total bytes of the state of layers that cache no tokens, such as Mamba layers.

    The state does not depend on the sequence length."""

    def sequence_bytes(self, num_tokens: int, itemsize: int, gpus: int = 1) -> int:
        """Return the number of cache bytes that a sequence of `num_tokens` tokens needs on each of an engine's GPUs.

        Each GPU holds at least one key-value head (Kwon et al. 2023, PagedAttention).
        """
        tokens = self.full_layers * num_tokens + self.window_layers * min(num_tokens, self.window)
        width = self.width // self.heads * max(1, self.heads // gpus)
        return tokens * width * itemsize + self.state_bytes // gpus


def read_cache_shape(config: Mapping[str, Any], layers: int, kv_heads: int, head_dim: int) -> CacheShape:
    """Return the cache shape of a model. `config` is the content of the model's config.json."""
    kinds = read_layer_types(config, layers)
    full = sum(kind in FULL for kind in kinds)
    windowed = sum(kind in WINDOWED for kind in kinds)
    others = layers - full - windowed - sum(kind in NO_MIXER for kind in kinds)
    window = config.get("sliding_window") or config.get("attention_chunk_size") or 0
    if latent := config.get("kv_lora_rank"):
        heads, width = 1, latent + (config.get("qk_rope_head_dim") or 0)
    else:
        heads, width = kv_heads, 2 * kv_heads * head_dim
    return CacheShape(full, windowed, window, heads, width, others * _state_bytes(config))


def read_layer_types(config: Mapping[str, Any], layers: int) -> list[str]:
    """Return the type of each layer, as config.json names it.

    If config.json lists no types, all layers have full attention, or sliding-window attention if a window is set.
    """
    if kinds := config.get("layer_types") or config.get("layers_block_type"):
        return list(kinds)
    if pattern := config.get("hybrid_override_pattern"):
        return list(pattern)
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True) is not False
    return ["sliding_attention" if windowed else "full_attention"] * layers


def _state_bytes(config: Mapping[str, Any]) -> int:
    """Return the size in bytes of a layer's state, for layers that cache no tokens, such as Mamba layers.

    The state is stored in float32. The size is 0 if config.json has no known keys for the state.
    """
    for keys in (CONVOLUTION, *STATES):
        sizes = [config.get(key) for key in keys]
        if all(isinstance(size, int) for size in sizes):
            return STATE_ITEMSIZE * prod(size for size in sizes if isinstance(size, int))
    return 0


REQUIRED_KEYS = ("num_attention_heads", "num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
ONLY_EXPERTS = {"moe", "E"}
"""Types of layers with experts in models like Nemotron-H, whose other layers have no experts."""
NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
CONFIG_KEYS = (
    *REQUIRED_KEYS,
    *("num_key_value_heads", "head_dim", "num_experts_per_tok", "moe_intermediate_size", "first_k_dense_replace"),
    *NUM_EXPERTS,
    *CACHE_KEYS,
    *("max_position_embeddings", "rope_parameters"),
)
"""Keys of config.json that this module reads. Older names, such as `rope_scaling`, are not included."""
SCALED_LATER = ("linear", "dynamic")
"""Types of RoPE scaling whose factor is not included in `max_position_embeddings`."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model. `intermediate` is the total feed-forward width of all experts that one token uses."""

    num_parameters: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    layers_cache: CacheShape | None = None
    """Cache shape; None if all layers have full attention."""
    idle_parameters: int = 0
    """Parameters of the experts that a token does not use."""
    expert_parameters: int = 0
    """Parameters of all experts of one layer."""

    @property
    def active_parameters(self) -> int:
        return self.num_parameters - self.idle_parameters

    @property
    def largest_parameter(self) -> int:
        """Number of elements of the largest tensor: the embedding, or the gate and up weights of a layer's experts."""
        return max(self.vocabulary * self.hidden, 2 * self.expert_parameters // 3)

    @property
    def cache_shape(self) -> CacheShape:
        return self.layers_cache or CacheShape(self.layers, 0, 0, self.kv_heads, 2 * self.key_width)

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Total width of the keys of one token in one layer. The values have the same width."""
        return self.kv_heads * self.head_dim

    def count_trained(self, lora: LoraSpec | None) -> int:
        """Return the number of trained parameters: all or, with LoRA, `rank` x (inputs + outputs) per linear layer.

        With LoRA, experts and layers that `lora` does not target are counted too, although they get no adapters.
        """
        if lora is None:
            return self.num_parameters
        attention = 2 * (self.hidden + self.query_width) + 2 * (self.hidden + self.key_width)
        return self.layers * lora.rank * (attention + 3 * (self.hidden + self.intermediate))


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of a model folder's config.json.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not a JSON object.
    """
    config = json.loads((path / "config.json").read_text())
    if not isinstance(config, dict):
        raise ValueError("must be a JSON object")
    return config


def get_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the section of config.json for the language model: `text_config`, or all of `config` if it is missing."""
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def read_shape(config: Mapping[str, Any], num_parameters: int) -> ModelShape:
    """Return the sizes of a model from the text section of its config.json and its number of parameters.

    Raises:
        ValueError: A size is missing in the config.
    """
    if missing := [key for key in REQUIRED_KEYS if not isinstance(config.get(key), int)]:
        raise ValueError(f"missing or not an integer: {', '.join(missing)}")
    heads = config["num_attention_heads"]
    experts = config.get("num_experts_per_tok") or 1
    width = (config.get("moe_intermediate_size") if experts > 1 else None) or config["intermediate_size"]
    kv_heads, head_dim = config.get("num_key_value_heads") or heads, config.get("head_dim")
    head_dim = head_dim or config["hidden_size"] // heads
    layers = config["num_hidden_layers"]
    all_experts = next((config[key] for key in NUM_EXPERTS if isinstance(config.get(key), int)), experts)
    moe_layers = sum(kind in ONLY_EXPERTS for kind in read_layer_types(config, layers))
    moe_layers = moe_layers or layers - (config.get("first_k_dense_replace") or 0)
    expert = 3 * config["hidden_size"] * width
    return ModelShape(
        num_parameters=num_parameters,
        layers=layers,
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=experts * width,
        vocabulary=config["vocab_size"],
        layers_cache=read_cache_shape(config, layers, kv_heads, head_dim),
        idle_parameters=moe_layers * max(0, all_experts - experts) * expert,
        expert_parameters=all_experts * expert if all_experts > 1 else 0,
    )


def read_quantization(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return config.json's `quantization_config`; None if the weights are not quantized."""
    found = config.get("quantization_config")
    return found if isinstance(found, dict) else None


def read_max_context(config: Mapping[str, Any]) -> int | None:
    """Return the model's maximum context in tokens; None if it has no limit."""
    limit: int | None = config.get("max_position_embeddings")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if limit is not None and (rope.get("rope_type") or rope.get("type")) in SCALED_LATER:
        limit = int(limit * rope.get("factor", 1.0))
    return limit


def list_weight_files(path: Path) -> list[Path]:
    return sorted([*path.glob("*.safetensors"), *path.glob("*.bin")])


def count_parameters(path: Path, config: Mapping[str, Any]) -> int:
    """Return the number of a model's parameters.

    The parameters in safetensors files are counted. For other files, the number is estimated from the file size. If an
    element of a tensor contains several quantized weights, each weight counts. `config` is the content of config.json.

    Raises:
        OSError: A file cannot be read.
        SafetensorError: A safetensors file is damaged.
    """
    quantization, config = read_quantization(config), {**config, **get_text_config(config)}
    itemsize = ITEMSIZES.get(str(config.get("dtype") or config.get("torch_dtype")), 4)
    total = 0
    for file in list_weight_files(path):
        if file.suffix == ".safetensors":
            with safe_open(file, framework="np") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    header = tensors.get_slice(name)
                    count = math.prod(header.get_shape())
                    total += (
                        count
                        if quantization is None
                        else _count_unpacked(name, count, header.get_dtype(), quantization)
                    )
        else:
            total += file.stat().st_size // itemsize
    return total


_SCALES = re.compile(
    r"[._](scales?|scale_inv|scale_2|SCB|qzeros|zero_point|g_idx|weight_shape|(nested_)?(absmax|quant_map)|"
    r"quant_state\..*)$"
)
"""Pattern for the names of a quantized model's tensors that are not parameters, such as scales."""
_PACKED_BITS = {"U8": 8, "I8": 8, "I32": 32}
"""Bits per element of the dtypes that pack several weights into one element."""


def _count_unpacked(name: str, count: int, dtype: str, quantization: Mapping[str, Any]) -> int:
    """Return the number of parameters in a tensor of a quantized model.

    `count` is the number of the tensor's elements. An element may contain several parameters.
    """
    if _SCALES.search(name):
        return 0
    return count * max(1, _PACKED_BITS.get(dtype, 0) // _read_bits(quantization))


def _read_bits(quantization: Mapping[str, Any]) -> int:
    """Return the bits per quantized weight, as GPTQ, AWQ, compressed-tensors or bitsandbytes record them.

    The default is 4, the bits of MXFP4 and NVFP4.
    """
    groups = quantization.get("config_groups") or {}
    named = [group.get("weights", {}).get("num_bits") for group in groups.values()]
    found = [bits for bits in (quantization.get("bits"), *named) if isinstance(bits, int) and bits > 0]
    if found:
        return found[0]
    return 8 if quantization.get("load_in_8bit") else 4
