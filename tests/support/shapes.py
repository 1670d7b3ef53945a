"""Tiny random models of today's architectures, whose layers all change what is predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tests.support.architectures import ARCHITECTURES, FURTHER

SHAPES = (*ARCHITECTURES, *FURTHER)
KINDS = (
    *("qwen3", "mistral", "llama4", "gpt_oss", "gemma2", "gemma4", "deepseek_v3", "qwen3_next"),
    *("kimi_linear", "nemotron_h", "lfm2", "minimax", "granite", "cohere2"),
)
"""One of each kind: full, sliding and chunked attention, sinks, capped scores, shared keys and values, latent
attention, gated delta rule, its form with a decay for each channel, state space, short convolution, lightning
attention, and logits that are divided or multiplied after the head."""
_SETTINGS = {
    "gemma4": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "final_logit_softcapping": 5.0,
    },
}

ENGINE_SETTINGS: dict[str, dict[str, Any]] = {"llama4": {"attention_chunk_size": 32}}
"""What an engine needs: a chunk holds whole blocks of its cache."""


def shape_config(shape: str, **settings: Any) -> PreTrainedConfig:
    return (ARCHITECTURES | FURTHER)[shape](**_SETTINGS.get(shape, {}) | settings)


def tiny_shape(shape: str, **settings: Any) -> PreTrainedModel:
    """With transformers' own attention; weights far from those of a fresh model, where most layers add little."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(shape_config(shape, **settings), attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=1.5 * parameter.shape[-1] ** -0.5)
            elif "A_log" not in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def write_shape(shape: str, folder: Path) -> Path:
    tiny_shape(shape).save_pretrained(folder)
    return folder
