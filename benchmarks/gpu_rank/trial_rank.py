"""A learner rank with random weights, and the files that it reads and writes, below the temporary folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config

from agent_rft.spec.job import AlgorithmSpec
from agent_rft.spec.model_options import LoraSpec
from agent_rft.spec.offload import Offload
from agent_rft.trainer.learner.learner_rank import LearnerRank
from agent_rft.trainer.learner.rank_config import LearnerConfig
from benchmarks.gpu import correctness
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.shapes import Shape

LEARNING_RATE = 1e-5


@dataclass(frozen=True, slots=True)
class Layout:
    """The settings of a rank that are compared."""

    zero_stage: int = 1
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    offload: Offload = "none"
    lora: LoraSpec | None = None
    kl_coef: float = 0.0

    def __str__(self) -> str:
        """ZeRO's stage, and whatever is not the default."""
        parts = [
            f"ZeRO {self.zero_stage}",
            "" if self.dtype == "bfloat16" else self.dtype,
            "" if self.offload == "none" else f"offload {self.offload}",
            "" if self.lora is None else f"LoRA {self.lora.rank}",
            "" if self.kl_coef == 0 else "reference model",
        ]
        return ", ".join(filter(None, parts))


def start_rank(machine: Machine, model: Path, layout: Layout) -> LearnerRank:
    """Start a rank on the machine's device, as the only rank of its group."""
    config = LearnerConfig(
        model,
        steps=1000,
        learning_rate=LEARNING_RATE,
        warm_up_steps=0,
        algorithm=AlgorithmSpec(kl_coef=layout.kl_coef),
        dtype=layout.dtype,
        zero_stage=layout.zero_stage,
        rank_cores=1 if machine.tiny else len(os.sched_getaffinity(0)),
        on_gpu=machine.device.type == "cuda",
        offload=layout.offload,
        lora=layout.lora,
    )
    return LearnerRank(config)


def model_folder(machine: Machine, shape: Shape, weights: Mapping[str, Tensor] | None = None) -> Path:
    """Return the folder of a model of this shape; the first call writes it, with random weights or with these."""
    folder = Path(tempfile.gettempdir(), f"qwen3-{shape.parameters}")
    if not folder.exists():
        torch.manual_seed(0)
        with torch.device(machine.device):
            model = AutoModelForCausalLM.from_config(Qwen3Config(**shape.config), dtype=machine.dtype)
        if weights is not None:
            model.load_state_dict(weights)
        unfinished = folder.with_suffix(".part")
        model.save_pretrained(unfinished)
        unfinished.rename(folder)
    return folder


def small_model(machine: Machine) -> Path:
    """Return the folder of the model of `benchmarks.gpu.correctness`, with its weights."""
    return model_folder(machine, correctness.shape_of(machine), correctness.weights_of(machine))


def digest(rank: LearnerRank) -> str:
    """Return a hash of all that a checkpoint holds: weights, Adam's moments, and the count of steps."""
    with tempfile.TemporaryDirectory() as folder:
        rank.snapshot()
        rank.write_snapshot(Path(folder))
        return digest_of(Path(folder))


def digest_of(folder: Path) -> str:
    """Return a hash of the names and contents of all files of a folder."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            found.update(f"{path.relative_to(folder)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return found.hexdigest()


def size_of(folder: Path) -> int:
    """Return the bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
