"""LoRA adapters of tiny models, made with PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_rft.trainer.learner.adapter import ALL_LINEAR

RANK, ALPHA = 4, 16.0


def adapted(base: Path, seed: int, *, rank: int = RANK, size: float = 0.5) -> Any:
    """A PEFT model with an adapter of all linear layers in float32; `size` is that of B, 0 for a new adapter."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    peft = get_peft_model(model, LoraConfig(r=rank, lora_alpha=ALPHA, target_modules=ALL_LINEAR, task_type="CAUSAL_LM"))
    change(peft, seed, size)
    return peft.eval()


def change(peft: Any, seed: int, size: float = 0.5) -> None:
    """Another A, and another B of this size, as a step of training makes them."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_" in name:
                factor = size if "lora_B" in name else 1.0
                parameter.copy_(factor * torch.randn(parameter.shape, generator=random) / parameter.shape[1] ** 0.5)


def tensors_of(peft: Any) -> dict[str, Tensor]:
    """The adapter's tensors by their names in PEFT's files."""
    return {name: tensor.contiguous() for name, tensor in get_peft_model_state_dict(peft).items()}


def write_adapter_folder(folder: Path, base: Path, seed: int, *, template: str | None = None) -> Any:
    """Write an adapter as PEFT does, with the base's tokenizer and maybe another chat template; returns the model."""
    peft = adapted(base, seed)
    peft.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = template or tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    return peft
