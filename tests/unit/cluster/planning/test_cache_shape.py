"""What a sequence takes in the cache, and how many parameters a token uses: by tiny models on a CPU, and by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from agent_rft.cluster.planning.model_shape import (
    CacheShape,
    ModelShape,
    count_parameters,
    get_text_config,
    read_cache_shape,
    read_config,
    read_shape,
)
from tests.support.architectures import ARCHITECTURES, WINDOW

TOKENS = 20


def shape_in(folder: Path, config: PreTrainedConfig) -> ModelShape:
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    config = read_config(folder)
    return read_shape(get_text_config(config), count_parameters(folder, config))


@pytest.mark.parametrize("name", ["qwen3", "llama", "gemma3", "gpt_oss", "glm4_moe"])
def test_a_tiny_models_cache_has_the_planned_size(tmp_path: Path, name: str) -> None:
    """Measured in transformers, whose windows hold one token less: it adds the new one as it computes."""
    shape = shape_in(tmp_path, ARCHITECTURES[name]())
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        layers = model(torch.arange(TOKENS)[None], use_cache=True).past_key_values.layers
    measured = sum(tensor.nbytes for layer in layers for tensor in (layer.keys, layer.values))
    one_less = shape.cache_shape.window_layers * shape.cache_shape.width * 4
    assert shape.cache_shape.sequence_bytes(TOKENS, 4) == measured + one_less


def test_a_token_uses_only_its_experts(tmp_path: Path) -> None:
    """Two of four; a model of two in all has as many parameters, but for the router's rows."""
    four = shape_in(tmp_path / "four", ARCHITECTURES["qwen3_moe"]())
    two = shape_in(tmp_path / "two", ARCHITECTURES["qwen3_moe"](num_experts=2))
    assert four.active_parameters == two.num_parameters + four.layers * 2 * four.hidden
    assert two.idle_parameters == 0


DEEPSEEK_V3 = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
QWEN3_NEXT = {
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
GEMMA3 = {"layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 4, "sliding_window": 512}
NEMOTRON_H = {"hybrid_override_pattern": "M-M*-E", "mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 128}


@pytest.mark.parametrize(
    ("config", "layers", "kv_heads", "head_dim", "num_bytes"),
    [
        (DEEPSEEK_V3, 61, 128, 56, 61 * 1000 * 576 * 2),
        (QWEN3_NEXT, 48, 2, 256, 12 * 1000 * 2 * 2 * 256 * 2 + 36 * 32 * 128 * 128 * 4),
        (GEMMA3, 24, 1, 256, (4 * 1000 + 20 * 512) * 2 * 256 * 2),
        (NEMOTRON_H, 6, 8, 128, 1000 * 2 * 8 * 128 * 2 + 2 * 8 * 64 * 128 * 4),
        ({"sliding_window": 4096, "use_sliding_window": False}, 28, 4, 128, 28 * 1000 * 2 * 4 * 128 * 2),
        ({"layer_types": ["conv", "full_attention"], "hidden_size": 64, "conv_L_cache": 3}, 2, 1, 64, 256_000 + 768),
    ],
)
def test_only_full_attention_keeps_every_token(
    config: dict[str, Any], layers: int, kv_heads: int, head_dim: int, num_bytes: int
) -> None:
    assert read_cache_shape(config, layers, kv_heads, head_dim).sequence_bytes(1000, 2) == num_bytes


def test_tensor_parallelism_splits_heads_and_no_latent_vector() -> None:
    heads = CacheShape(10, 0, 0, heads=8, width=2 * 8 * 128)
    assert [heads.sequence_bytes(1, 2, gpus) for gpus in (1, 4, 16)] == [40_960, 10_240, 5120]
    latent = CacheShape(10, 0, 0, heads=1, width=576)
    assert latent.sequence_bytes(1, 2, 8) == latent.sequence_bytes(1, 2)


def test_a_window_is_full_after_as_many_tokens() -> None:
    shape = read_cache_shape({"sliding_window": WINDOW}, 2, 2, 32)
    assert shape.sequence_bytes(WINDOW, 4) == shape.sequence_bytes(1000, 4)
