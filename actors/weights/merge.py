"""An adapter merged into its base: a whole model, written file by file, so that memory holds one file at a time."""

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
    copy_companions,
    files_that_transformers_reads,
    names_in,
    save_tensors,
)
from agent_rft.trainer.loop.checkpoint import STATE
from agent_rft.trainer.model.lora import PREFIX

RUNS_OWN = (CONFIG_FILE, "learner.json", STATE)
"""Files of a checkpoint that say how the adapter was trained."""


def merge_adapter(adapter: AdapterFolder, base: Path, out: Path) -> None:
    """Write the folder `out`: each adapted weight W of `base` becomes W + alpha / rank x B A, computed in float32.

    Tokenizer, chat template and card are the adapter's. `out` appears when it is complete.

    Raises:
        UserError: `out` exists, or the base's files lack an adapted weight.
        OSError: The disk is full or read-only.
    """
    if out.exists():
        raise UserError(f"{out} exists; give the name of a new folder")
    changes, scale = _changes(adapter.tensors()), adapter.config.alpha / adapter.config.rank
    files, name_of = files_that_transformers_reads(base), names_in(_without_weights(base))
    names = {name_of(key) for file in files for key in _keys(file)}
    if missing := sorted(changes.keys() - names):
        what = f"the files of {base} have no {missing[0]}, which the adapter changes"
        raise UserError(f"{what}; merge it with PEFT: merge_and_unload() of a PeftModel, then save_pretrained")
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
    copy_companions(adapter.path, work, dtype)
    for name in RUNS_OWN:
        (work / name).unlink(missing_ok=True)
    if (base / INDEX).exists():
        shutil.copyfile(base / INDEX, work / INDEX)
    work.rename(out)


def _changes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B by the name of the weight that they change."""
    ends = (".lora_A.weight", ".lora_B.weight")
    layers = {name.removesuffix(ends[0]) for name in tensors if name.endswith(ends[0])}
    return {
        f"{layer.removeprefix(PREFIX)}.weight": (tensors[layer + ends[0]], tensors[layer + ends[1]]) for layer in layers
    }


def _without_weights(base: Path) -> PreTrainedModel:
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base))
    return model


def _keys(file: Path) -> list[str]:
    with safe_open(file, "pt") as weights:
        return list(weights.keys())
