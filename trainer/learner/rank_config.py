"""Configuration of a learner rank, and creation of its DeepSpeed engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from agent_rft.chat.model_files import ModelFiles
from agent_rft.errors import UserError
from agent_rft.spec.job import AlgorithmSpec, Schedule
from agent_rft.spec.model_options import LoraSpec
from agent_rft.spec.offload import Offload
from agent_rft.trainer.learner.deepspeed_internals import ClippedAdamW, full_size
from agent_rft.trainer.learner.rank_memory_sizes import BUCKET_ELEMENTS, effective_zero_stage
from agent_rft.trainer.model.policy import Policy

GRADIENT_NORM = 1.0
BETAS = (0.9, 0.95)


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """Configuration of a learner rank.

    Attributes:
        model: A local folder with a full model. If `lora` is set, the folder may instead contain an adapter, whose
            training continues.
        steps: Number of `step` calls in the job, for the learning rate schedule.
        warm_up_steps: Warm-up steps of the schedule; None means 3 % of `steps`.
        algorithm: Settings of the loss, and the sampling temperature.
        collective_timeout_s: Time limit of each call that all ranks make together. Long steps have a limit that is
            computed from their tokens and the time of earlier steps.
        assumed_token_s: Seconds per token of a step, as assumed by the step plan; 0 if unknown.
        files: Files to write in addition to the base model's files; None means no additional files.
        stop_token_ids: The engine's stop tokens, for masks of constrained decoding. If empty, the tokenizer's end token
            is used.
        offload: State to hold in host memory instead of GPU memory.
        seed: Random seed of a new adapter.
    """

    model: Path
    steps: int
    learning_rate: float
    lr_schedule: Schedule = "constant"
    warm_up_steps: int | None = None
    algorithm: AlgorithmSpec = field(default_factory=AlgorithmSpec)
    method: Literal["reinforcement", "supervised"] = "reinforcement"
    dtype: Literal["float32", "bfloat16"] = "float32"
    zero_stage: int = 0
    micro_batch_tokens: int = 8192
    rank_cores: int = 1
    on_gpu: bool = False
    collective_timeout_s: float = 1800.0
    assumed_token_s: float = 0.0
    files: ModelFiles | None = None
    stop_token_ids: tuple[int, ...] = ()
    offload: Offload = "none"
    lora: LoraSpec | None = None
    seed: int = 0

    @property
    def effective_stage(self) -> int:
        return effective_zero_stage(self.dtype == "bfloat16", self.zero_stage, self.offload != "none")


def create_deepspeed_engine(config: LearnerConfig, policy: Policy, deepspeed: Any) -> Any:
    """Return the DeepSpeed engine that trains `policy`; all ranks must call this together.

    Raises:
        UserError: ZeRO stage 3 does not support the model.
    """
    stage, trained = config.effective_stage, [p for p in policy.parameters() if p.requires_grad]
    settings = _deepspeed_settings(config)
    zero: dict[str, Any] = settings["zero_optimization"]
    zero["reduce_bucket_size"] = min(BUCKET_ELEMENTS, sum(map(full_size, trained)))
    if config.offload != "none":
        settings["zero_force_ds_cpu_optimizer"] = False  # DeepSpeed's Adam needs a compiler; torch's is fused, too
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": config.on_gpu}
    if stage == 3:
        check_zero3_support(policy)
        _partition_policy(config, policy, deepspeed, settings)
    options: dict[str, Any] = {"lr": 0.0, "betas": BETAS, "weight_decay": 0.0, "fused": True}
    optimizer = torch.optim.AdamW(trained, **options) if stage > 0 else ClippedAdamW(trained, GRADIENT_NORM, **options)
    engine, *_ = deepspeed.initialize(model=policy, optimizer=optimizer, config=settings)
    engine.train()
    return engine


def create_reference_model(config: LearnerConfig, policy: Policy, deepspeed: Any) -> nn.Module:
    """Return `policy` as a frozen model that computes like it; all ranks must call this together.

    Under ZeRO stage 3, the result is a DeepSpeed engine without an optimizer: each rank stores its part of the weights,
    and gathers each layer when the layer computes. Below stage 3, each rank stores all weights, as it does for the
    trained policy.
    """
    policy.requires_grad_(False).eval()
    if config.effective_stage < 3:
        return policy
    settings = _deepspeed_settings(config)
    _partition_policy(config, policy, deepspeed, settings)
    engine: nn.Module = deepspeed.initialize(model=policy, config=settings)[0]
    engine.eval()  # DeepSpeed's own method, which returns None
    return engine


def _deepspeed_settings(config: LearnerConfig) -> dict[str, Any]:
    stage = config.effective_stage
    return {
        "train_micro_batch_size_per_gpu": 1,
        "managed_gradient_accumulation": False,  # step() ends an update, whatever the number of micro-batches
        "gradient_clipping": GRADIENT_NORM if stage > 0 else 0.0,
        "bf16": {"enabled": config.dtype == "bfloat16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_optimization": {"stage": stage, "overlap_comm": stage >= 2 and config.on_gpu},
        "steps_per_print": None,
    }


def _partition_policy(config: LearnerConfig, policy: Policy, deepspeed: Any, settings: dict[str, Any]) -> None:
    """Partition the parameters that `partition_on_read` did not read from files, and move buffers to the device.

    Under ZeRO stage 3, DeepSpeed moves no buffers, such as the correction biases of DeepSeek's and GLM's routers.
    """
    deepspeed.zero.Init(module=policy, config_dict_or_path=settings, dtype=getattr(torch, config.dtype))
    for buffer in policy.buffers():
        buffer.data = buffer.data.to("cuda" if config.on_gpu else "cpu")


def check_zero3_support(policy: Policy) -> None:
    """Check that the policy has no layers that run once per sequence, which ZeRO stage 3 does not support.

    Ranks with different numbers of sequences would gather these layers' weights a different number of times.

    Raises:
        UserError: The policy has such layers.
    """
    if policy.mixers:
        layer = type(policy.mixers[0]).__name__
        what = f"ZeRO stage 3 cannot train layers of type {layer}, because such layers process one sequence at a time"
        raise UserError(f"{what}; set cluster.zero_stage to 2")
