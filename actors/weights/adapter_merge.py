"""Merge of an adapter into its base model, file by file, so that memory holds one weight file at a time."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from agent_rft.errors import UserError
from agent_rft.trainer.learner.adapter import CONFIG_FILE, AdapterFolder
from agent_rft.trainer.learner.checkpoint_weights import (
    INDEX,
    copy_non_weight_files,
    list_weight_files,
    map_to_model_names,
    save_tensors,
)
from agent_rft.trainer.loop.checkpoint import LOOP_STATE_FILE
from agent_rft.trainer.model.lora import PREFIX

TRAINING_FILES = (CONFIG_FILE, "learner.json", LOOP_STATE_FILE)
"""Files of a checkpoint that describe the training, and are left out of the merged model."""


def merge_adapter(adapter: AdapterFolder, base: Path, out: Path) -> None:
    """Merge `adapter` into the model `base`, and write the merged model to a new folder `out`.

    Each adapted weight W becomes W + (alpha / rank) B A, computed in float32. Tokenizer, chat template and model card
    are copied from the adapter. `out` appears only when it is complete.

    Raises:
        UserError: `out` exists, or the files of `base` lack a weight that the adapter changes.
        OSError: The disk is full or read-only.
    """
    if out.exists():
        raise UserError(f"{out} already exists. Choose a new folder.")
    changes, scale = _pair_matrices(adapter.load_tensors()), adapter.config.alpha / adapter.config.rank
    files, name_of = list_weight_files(base), map_to_model_names(_make_meta_model(base))
    names = {name_of(key) for file in files for key in _read_tensor_names(file)}
    if missing := sorted(changes.keys() - names):
        what = f"the adapter changes {missing[0]}, which the files of {base} do not contain"
        raise UserError(
            f"{what}. Merge with PEFT instead: call merge_and_unload() of a PeftModel, then save_pretrained()."
        )
    work = out.with_name(out.name + ".tmp")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    dtype = torch.float32
    for file in files:
        tensors: dict[str, Tensor] = {}
        with safe_open(file, "pt") as weights:
            for key in weights.keys():  # noqa: SIM118 - it is not a dictionary
                tensors[key] = weights.get_tensor(key)
                if (name := name_of(key)) in changes:
                    down, up = changes[name]
                    merged = torch.addmm(tensors[key].float(), up.float(), down.float(), alpha=scale)
                    dtype = tensors[key].dtype
                    tensors[key] = merged.to(dtype)
        save_tensors(tensors, work / file.name)
    copy_non_weight_files(adapter.path, work, dtype)
    for name in TRAINING_FILES:
        (work / name).unlink(missing_ok=True)
    if (base / INDEX).exists():
        shutil.copyfile(base / INDEX, work / INDEX)
    work.rename(out)


def _pair_matrices(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the matrices A and B of each adapted weight, keyed by the weight's name."""
    ends = (".lora_A.weight", ".lora_B.weight")
    layers = {name.removesuffix(ends[0]) for name in tensors if name.endswith(ends[0])}
    return {
        f"{layer.removeprefix(PREFIX)}.weight": (tensors[layer + ends[0]], tensors[layer + ends[1]]) for layer in layers
    }


def _make_meta_model(base: Path) -> PreTrainedModel:
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base))
    return model


def _read_tensor_names(file: Path) -> list[str]:
    with safe_open(file, "pt") as weights:
        return list(weights.keys())
