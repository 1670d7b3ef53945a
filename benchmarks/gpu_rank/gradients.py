"""The loss and the gradient of a rank's first update, read from a checkpoint: as Adam got them, whatever the layout."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from agent_rft.trainer.learner.learner_rank import LearnerRank
from agent_rft.trainer.learner.rank_config import BETAS, GRADIENT_NORM
from agent_rft.trainer.loop.checkpoint import TRAINING_STATE
from agent_rft.trainer.model.micro_batches import MicroBatch
from benchmarks.gpu.machine import error

LOSS = "loss"
FIRST_MOMENT = "exp_avg:0:"
"""Prefix of the names of Adam's first moments if one rank holds each parameter in full."""


@dataclass(frozen=True, slots=True)
class FirstUpdate:
    """The loss, and the gradient of each parameter, flat, in float32, before it was clipped."""

    loss: float
    gradients: dict[str, Tensor]

    def errors(self, reference: FirstUpdate) -> dict[str, float]:
        """Relative errors against a reference with the same parameters."""
        names = sorted(reference.gradients)
        ours, theirs = ([update.gradients[name] for name in names] for update in (self, reference))
        return {
            "gradients": error(ours, theirs),
            "loss": abs(self.loss - reference.loss) / abs(reference.loss),
        }

    def save(self, file: Path) -> None:
        save_file({LOSS: torch.tensor(self.loss, dtype=torch.float64), **self.gradients}, file)

    @classmethod
    def load(cls, file: Path) -> FirstUpdate:
        tensors = load_file(file)
        return cls(float(tensors.pop(LOSS)), tensors)


def first_update(rank: LearnerRank, batch: MicroBatch) -> FirstUpdate:
    """Update a new rank once. Adam's first moment is then (1 - beta1) times the clipped gradient."""
    metrics = rank.step([[batch]], version=0).metrics
    scale = max(1.0, metrics["grad_norm"] / GRADIENT_NORM) / (1 - BETAS[0])
    gradients = {}
    with tempfile.TemporaryDirectory() as folder:
        rank.snapshot()
        rank.write_snapshot(Path(folder))
        [state] = Path(folder, TRAINING_STATE).glob("*.safetensors")
        with safe_open(state, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - it is not a dictionary
                if key.startswith(FIRST_MOMENT):
                    gradients[key.removeprefix(FIRST_MOMENT)] = file.get_tensor(key) * scale
    return FirstUpdate(metrics["loss"], gradients)
