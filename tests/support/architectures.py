"""Tiny configurations of the architectures that users train: a few layers of each kind, every dimension small.

The vocabulary holds that of `tests.support.tiny_model`, and sliding windows are shorter than a test's sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

WINDOW = 6

_SIZES: dict[str, Any] = {
    "vocab_size": 272,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,  # of size 32, the least that vLLM has on CPUs
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "pad_token_id": 256,
    "bos_token_id": None,
    "eos_token_id": 258,
}
_HEADS: dict[str, Any] = {"head_dim": 32}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
_MAMBA: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_chunk_size": 8}
_LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_GRANITE: dict[str, Any] = {
    "embedding_multiplier": 2.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
}
_SLIDING: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}


def _config(model_type: str, **settings: Any) -> PreTrainedConfig:
    return AutoConfig.for_model(model_type, **(_SIZES | settings))


ARCHITECTURES: dict[str, Callable[..., PreTrainedConfig]] = {
    name: partial(_config, model_type, **settings)
    for name, model_type, settings in (
        ("qwen2", "qwen2", {}),
        ("qwen3", "qwen3", _HEADS | {"tie_word_embeddings": True}),
        ("qwen3_moe", "qwen3_moe", _HEADS | _EXPERTS | {"num_experts": 4}),
        (
            "qwen3_next",
            "qwen3_next",
            _HEADS | _EXPERTS | _LINEAR | {"num_experts": 4, "shared_expert_intermediate_size": 32},
        ),
        ("qwen3_5", "qwen3_5_text", _HEADS | _LINEAR),
        ("llama", "llama", {}),
        ("mistral", "mistral", _HEADS | {"sliding_window": WINDOW}),
        ("gpt_oss", "gpt_oss", _HEADS | _SLIDING | {"num_local_experts": 4, "num_experts_per_tok": 2}),
        ("gemma3", "gemma3_text", _HEADS | _SLIDING | {"query_pre_attn_scalar": 32, "tie_word_embeddings": True}),
        (
            "gemma4",
            "gemma4_text",
            _HEADS
            | _SLIDING
            | {
                "global_head_dim": 64,
                "hidden_size_per_layer_input": 16,
                "vocab_size_per_layer_input": 272,
                "tie_word_embeddings": True,
            },
        ),
        ("glm4", "glm4", _HEADS),
        (
            "glm4_moe",
            "glm4_moe",
            _HEADS | _EXPERTS | {"n_routed_experts": 4, "first_k_dense_replace": 1, "use_qk_norm": True},
        ),
        (
            "deepseek_v3",
            "deepseek_v3",
            _EXPERTS
            | {
                "num_key_value_heads": 2,
                "kv_lora_rank": 512,  # vLLM has its kernel on CPUs for 512 + 64 only
                "q_lora_rank": 24,
                "qk_rope_head_dim": 64,
                "qk_nope_head_dim": 16,
                "v_head_dim": 32,
                "n_routed_experts": 4,
                "n_group": 2,
                "topk_group": 1,
                "first_k_dense_replace": 1,
                "topk_method": "noaux_tc",  # in the config.json of the real models, and only vLLM reads these two
                "scoring_func": "sigmoid",
            },
        ),
        ("phi3", "phi3", {"sliding_window": WINDOW}),
        ("granite", "granite", _GRANITE),
        (
            "granitemoehybrid",
            "granitemoehybrid",
            _GRANITE
            | _MAMBA
            | {
                "layer_types": ["linear_attention", "full_attention"],
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "shared_intermediate_size": 32,
            },
        ),
        (
            "nemotron_h",
            "nemotron_h",
            _HEADS
            | _EXPERTS
            | {
                "num_hidden_layers": None,
                "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
                "mamba_num_heads": 4,
                "mamba_head_dim": 32,
                "ssm_state_size": 16,
                "n_groups": 2,
                "chunk_size": 8,
                "n_routed_experts": 4,
                "moe_shared_expert_intermediate_size": 32,
            },
        ),
        (
            "lfm2",
            "lfm2",
            {
                "layer_types": ["conv", "full_attention"],
                "conv_dim": 64,
                "block_dim": 64,  # in the config.json of the real models, and only vLLM reads these two
                "block_ff_dim": 96,
                "tie_word_embeddings": True,
            },
        ),
        (
            "minimax",
            "minimax",
            _HEADS
            | {
                "layer_types": ["linear_attention", "full_attention"],
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "block_size": 8,
            },
        ),
        ("smollm3", "smollm3", {"no_rope_layers": [1, 0], "tie_word_embeddings": True}),
    )
}
"""By model: makes its configuration, with settings that keywords replace."""

FURTHER: dict[str, Callable[..., PreTrainedConfig]] = {
    "qwen3_5_moe": partial(
        _config,
        "qwen3_5_moe_text",
        **_HEADS | _EXPERTS | _LINEAR | {"num_experts": 4, "shared_expert_intermediate_size": 32},
    ),
    "gemma2": partial(
        _config,
        "gemma2",
        **_HEADS
        | _SLIDING
        | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0, "tie_word_embeddings": True},
    ),
    "granitemoe": partial(_config, "granitemoe", **_GRANITE | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "minimax_m2": partial(
        _config,
        "minimax_m2",
        **_HEADS
        | {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rotary_dim": 16,
            "scoring_func": "sigmoid",  # in the config.json of the real models, and only vLLM reads these two
            "use_routing_bias": True,
        },
    ),
    "kimi_linear": partial(
        _config,
        "kimi_linear",
        **_EXPERTS
        | {
            "layer_types": ["linear_attention", "full_attention"],
            "num_key_value_heads": 2,
            "kv_lora_rank": 512,  # vLLM has its kernel on CPUs for 512 + 64 only
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 16,
            "v_head_dim": 32,
            "linear_num_heads": 4,
            "linear_head_dim": 16,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
        },
    ),
    "llama4": partial(
        _config,
        "llama4_text",
        **_HEADS
        | {
            "num_hidden_layers": 4,
            "intermediate_size_mlp": 96,
            "attention_chunk_size": WINDOW,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,  # vLLM has no more
            "interleave_moe_layer_step": 2,
        },
    ),
    "olmo3": partial(_config, "olmo3", **_SLIDING),
    "cohere2": partial(_config, "cohere2", **_HEADS | _SLIDING | {"logit_scale": 0.5, "tie_word_embeddings": True}),
    "falcon_h1": partial(
        _config,
        "falcon_h1",
        **_HEADS | _MAMBA | {"mamba_d_ssm": 128, "mamba_n_groups": 2, "lm_head_multiplier": 0.5},
    ),
}
"""Others that the learner trains."""


def with_vision(name: str) -> PreTrainedConfig:
    """The configuration of a model that also sees, as most folders of these architectures have it."""
    tower: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48}
    own: dict[str, Any] = {}
    match name:
        case "qwen3_5":
            tower |= {"depth": 1, "num_heads": 2, "out_hidden_size": _SIZES["hidden_size"]}
        case "gemma3":
            tower |= {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
            own = {"mm_tokens_per_image": 4}
        case "gemma4":
            tower |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
            own = {"audio_config": None}
    text = ARCHITECTURES[name]()
    own |= {"tie_word_embeddings": text.tie_word_embeddings}
    return AutoConfig.for_model(name, text_config=text.to_dict(), vision_config=tower, **own)
