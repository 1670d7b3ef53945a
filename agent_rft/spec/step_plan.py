"""Step plan of a job: its numeric settings, with each `auto` resolved from the rows and the model's parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from agent_rft.events import SettingChosen
from agent_rft.spec.endpoints import StrictModel
from agent_rft.spec.job import Auto, CommonHyperparameters, JobSpec

Count = Annotated[int, Field(ge=1)]
MethodType = Literal["reinforcement", "supervised"]
DEFAULT_BATCH_SIZE, DEFAULT_ROWS = 16, 320
"""Default rows per step, and default rows over all epochs."""
GROUP_SIZE = 8
"""Rollouts per row if `compute_multiplier` is 1."""
REASONING_TOKENS = {"default": None, "low": 512, "medium": 2048, "high": 8192}
REFERENCE_PARAMETERS = 8e9
REFERENCE_RATES: Mapping[MethodType, float] = {"reinforcement": 1e-6, "supervised": 1e-5}
"""Default learning rates for training all weights of a model with REFERENCE_PARAMETERS parameters."""
LORA_FACTOR = 10
"""Best learning rate for LoRA, divided by the best learning rate for training all weights. The ratio is the same for
any rank, and for reinforcement and supervised training. Source: Schulman et al. 2025, "LoRA Without Regret", Thinking
Machines, who use alpha = 32."""


class StepPlan(StrictModel):
    """Resolved numeric settings of a job. They are printed before the start and recorded in the run folder."""

    num_rows: Count
    """Rows of the training file."""
    batch_size: Count
    """Rows per step."""
    n_epochs: Count
    """Passes over the training file."""
    group_size: Count
    """Rollouts per row; 1 for supervised jobs."""
    steps: Count
    """Total number of training steps."""
    eval_interval: Count
    """Steps between validations."""
    eval_samples: Count
    """Rollouts per validation and test row."""
    updates_per_batch: Count
    """Optimizer steps per batch."""
    learning_rate: Annotated[float, Field(gt=0)]
    """Learning rate after the warm-up, already multiplied by `learning_rate_multiplier`."""
    max_reasoning_tokens: Count | None
    """Maximum number of reasoning tokens per turn; None: no limit."""

    @property
    def rollouts_per_step(self) -> int:
        return self.batch_size * self.group_size


def auto_learning_rate(method: MethodType, num_parameters: int, *, lora: bool = False) -> float:
    """Return the default for AdamW's base learning rate, rounded to two digits.

    The rate is REFERENCE_RATES[method] x sqrt(8e9 / num_parameters); with `lora`, times LORA_FACTOR.

    Sources: Adam's best rate is inversely proportional to the width of the layers (Yang et al. 2022, Tensor Programs
    V). For models with the same number of layers, the best rate is therefore proportional to 1 / sqrt(num_parameters),
    as in Thinking Machines' cookbook (hyperparam_utils.get_full_finetune_lr_multiplier). Published rates for
    reinforcement of models with 1.5 to 32 billion parameters are 5e-7 to 2e-6 (DAPO and Open-Reasoner-Zero: 1e-6).
    Published rates for supervised fine-tuning of models with 7 to 8 billion parameters are 5e-6 to 2e-5 (Tulu 3: 5e-6;
    Alpaca: 2e-5).
    """
    rate = REFERENCE_RATES[method] * math.sqrt(REFERENCE_PARAMETERS / num_parameters)
    return float(f"{rate * (LORA_FACTOR if lora else 1):.2g}")


def resolve_plan(job: JobSpec, num_rows: int, num_parameters: int) -> tuple[StepPlan, tuple[SettingChosen, ...]]:
    """Resolve every `auto` of a job whose training file has `num_rows` rows, and return the plan and the chosen values.

    Values for auto: batch_size = min(16, rows); n_epochs = max(1, round(320 / rows)); compute_multiplier = 16 / rows,
    clipped to [1, 2]; learning_rate_multiplier = 1; eval_interval = max(1, steps // 4); eval_samples = 1.

    Values that follow from the settings: group_size = max(2, round(8 x compute_multiplier)), or 1 for supervised jobs;
    steps = ceil(rows x epochs / batch_size). Batches cross epoch boundaries, so a batch may be larger than the file.
    """
    choices: list[SettingChosen] = []

    def choose(setting: str, given: float | Auto, auto: float, why: str) -> float:
        """Return the value of a setting; if it was auto, record the choice."""
        if given != "auto":
            return given
        choices.append(SettingChosen(setting=setting, value=auto, reason=why))
        return auto

    reinforcement = job.method.type == "reinforcement"
    hp: CommonHyperparameters = (job.reinforcement if reinforcement else job.supervised).hyperparameters
    algorithm = job.optimizer_settings
    rows = f"{num_rows} rows"
    batch_size = choose(
        "hyperparameters.batch_size",
        hp.batch_size,
        min(DEFAULT_BATCH_SIZE, num_rows),
        f"{rows}, at most {DEFAULT_BATCH_SIZE} a step",
    )
    n_epochs = choose(
        "hyperparameters.n_epochs",
        hp.n_epochs,
        max(1, round(DEFAULT_ROWS / num_rows)),
        f"{rows}, repeated until the job has trained on about {DEFAULT_ROWS} rows",
    )
    steps = math.ceil(num_rows * n_epochs / batch_size)
    group_size, updates, samples, thinking = 1, 1, 1.0, None
    if reinforcement:
        rl = job.reinforcement.hyperparameters
        compute = min(2.0, max(1.0, DEFAULT_BATCH_SIZE / num_rows))
        why = f"{rows}, {round(GROUP_SIZE * compute)} rollouts of each"
        compute = choose("hyperparameters.compute_multiplier", rl.compute_multiplier, compute, why)
        group_size = max(2, round(GROUP_SIZE * compute))
        samples = 1.0 if rl.eval_samples == "auto" else rl.eval_samples
        thinking = REASONING_TOKENS[rl.reasoning_effort]
        updates = job.reinforcement.algorithm.updates_per_batch
    why = f"a quarter of {steps} steps"
    interval = choose("hyperparameters.eval_interval", hp.eval_interval, max(1, steps // 4), why)
    lora = algorithm.adapter is not None
    rate = choose(
        "algorithm.learning_rate",
        algorithm.learning_rate,
        auto_learning_rate(job.method.type, num_parameters, lora=lora),
        f"{REFERENCE_RATES[job.method.type]:g} x sqrt({REFERENCE_PARAMETERS:g} / {num_parameters:,} parameters)"
        + (f" x {LORA_FACTOR} for LoRA" if lora else ""),
    )
    multiplier = 1.0 if hp.learning_rate_multiplier == "auto" else hp.learning_rate_multiplier
    plan = StepPlan(
        num_rows=num_rows,
        batch_size=int(batch_size),
        n_epochs=int(n_epochs),
        group_size=group_size,
        steps=steps,
        eval_interval=int(interval),
        eval_samples=int(samples),
        updates_per_batch=updates,
        learning_rate=rate * multiplier,
        max_reasoning_tokens=thinking,
    )
    return plan, tuple(choices)
