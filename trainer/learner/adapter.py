"""LoRA adapters in PEFT's format: configuration, and the folder that PEFT, vLLM and agent-rft load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from agent_rft.errors import UserError
from agent_rft.spec.model_options import LoraSpec

if TYPE_CHECKING:  # planning uses AdapterConfig too, and must not load torch
    from torch import Tensor

ALL_LINEAR = "all-linear"
"""PEFT's name for all linear layers except the output head."""
FIX = "use an adapter with plain LoRA, or merge the adapter into its base model with PEFT and use the merged folder"
MERGE_FIX = "set `lora` to the adapter's rank and alpha, or merge the adapter first: agent-rft models merge FOLDER OUT"
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Shape of a LoRA adapter: each adapted weight W becomes W + alpha / rank x B A, where A has `rank` rows.

    `targets` contains names of modules, such as "q_proj", or only ALL_LINEAR.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] = (ALL_LINEAR,)

    def to_lora_spec(self) -> LoraSpec | None:
        """Return the `lora` setting for training this adapter further, or None if no setting matches."""
        targets = ALL_LINEAR if self.targets == (ALL_LINEAR,) else self.targets
        try:
            return LoraSpec.model_validate({"rank": self.rank, "alpha": self.alpha, "targets": targets})
        except ValidationError:
            return None

    def to_peft_config(self, base: str) -> dict[str, Any]:
        """Return the content of PEFT's adapter_config.json; `base` is the folder or name of the base model."""
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "target_modules": ALL_LINEAR if self.targets == (ALL_LINEAR,) else list(self.targets),
            "lora_dropout": 0.0,
            "bias": "none",
            "inference_mode": True,
        }


def write_adapter(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write an adapter into `folder` in PEFT's format.

    `tensors` are keyed by their names in PEFT's files. `config` is the result of `AdapterConfig.to_peft_config`.

    Raises:
        OSError: The disk is full or read-only.
    """
    from agent_rft.trainer.learner.checkpoint_weights import save_tensors

    save_tensors(tensors, folder / WEIGHTS_FILE)
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")


def is_adapter(folder: Path) -> bool:
    """Return whether a folder contains an adapter instead of a full model."""
    return (folder / CONFIG_FILE).is_file()


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """An adapter in the folder `path`; `base` is the folder or name of its base model."""

    path: Path
    base: Path
    config: AdapterConfig

    @classmethod
    def read(cls, folder: Path) -> AdapterFolder | None:
        """Read the adapter in a model's folder; return None if the folder contains a full model.

        Raises:
            UserError: The adapter is an unsupported variant of LoRA, or its config is damaged.
        """
        path = folder / CONFIG_FILE
        if not path.exists():
            return None
        try:
            config = _AdapterConfigFile.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            problem, public = f"{path}: {why}", f"its {CONFIG_FILE}: {why}"
            raise UserError(f"{problem}; {FIX}", problem=problem, fix=FIX, public_message=public) from None
        targets = config.target_modules
        shape = AdapterConfig(config.r, config.lora_alpha, (targets,) if isinstance(targets, str) else tuple(targets))
        return cls(folder, Path(config.base_model_name_or_path), shape)

    def check_compatible(self, lora: LoraSpec | None) -> None:
        """Check that a job with the setting `lora` can continue this adapter.

        The shapes of the adapter's tensors are checked later.

        Raises:
            UserError: The job trains all weights, or an adapter with another rank or alpha.
        """
        if lora is not None and (lora.rank, lora.alpha) == (self.config.rank, self.config.alpha):
            return
        is_one = f"{self.path} is an adapter of rank {self.config.rank} and alpha {self.config.alpha:g}"
        requested = (
            "the job trains all weights" if lora is None else f"`lora` sets rank {lora.rank} and alpha {lora.alpha:g}"
        )
        problem = f"{is_one}, but {requested}"
        raise UserError(f"{problem}; {MERGE_FIX}", problem=problem, fix=MERGE_FIX)

    def load_tensors(self) -> dict[str, Tensor]:
        """Load the adapter's tensors into CPU memory, keyed by their names in PEFT's files."""
        from safetensors.torch import load_file

        return load_file(self.path / WEIGHTS_FILE)


class _AdapterConfigFile(BaseModel):
    """The fields of adapter_config.json that we read. Validation rejects unsupported LoRA variants."""

    peft_type: Literal["LORA"]
    base_model_name_or_path: str
    r: Annotated[int, Field(ge=1, le=512)]
    lora_alpha: Annotated[float, Field(gt=0)]
    target_modules: list[str] | str
    bias: Literal["none"] = "none"
    use_rslora: Literal[False] = False
    use_dora: Literal[False] = False
    modules_to_save: None = None
    rank_pattern: Annotated[dict[str, int], Field(max_length=0)] = {}
    alpha_pattern: Annotated[dict[str, float], Field(max_length=0)] = {}
