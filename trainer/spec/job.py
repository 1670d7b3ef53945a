"""The settings of a job, in the shape of OpenAI's fine-tuning API, and how `auto` is resolved.

The models are frozen and reject unknown keys; names of settings include their units. Defaults work on two CPU cores
(one engine and one learner rank, one core each) and on GPUs.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from trainer.spec.endpoints import Positive, Rate, SessionSpec, Strict, ToolSpec
from trainer.spec.graders import GraderSpec, GuardSpec

Auto = Literal["auto"]
Schedule = Literal["constant", "linear", "cosine"]
Advantage = Literal["centred", "grpo", "rloo"]
FILES = ("training_file", "validation_file", "test_file")
"""The fields of a job that name files."""


# -- common to both methods --------------------------------------------------------------------------------------------


class CommonHyperparameters(Strict):
    """Hyperparameters of both methods. `resolve` has the rules for `auto`."""

    batch_size: Positive | Auto = "auto"
    n_epochs: Positive | Auto = "auto"
    learning_rate_multiplier: Annotated[float, Field(gt=0)] | Auto = "auto"
    eval_interval: Positive | Auto = "auto"


class OptimizerSpec(Strict):
    """AdamW with gradients clipped to norm 1 and a warm-up over the first 3 % of the steps.

    `learning_rate` is the base rate, which the hyperparameter `learning_rate_multiplier` scales.
    """

    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    lr_schedule: Schedule = "constant"


# -- reinforcement -----------------------------------------------------------------------------------------------------


class Hyperparameters(CommonHyperparameters):
    """Hyperparameters of reinforcement, with OpenAI's names."""

    compute_multiplier: Annotated[float, Field(gt=0)] | Auto = "auto"
    eval_samples: Positive | Auto = "auto"
    reasoning_effort: Literal["default", "low", "medium", "high"] = "default"


class RolloutLimits(Strict):
    """Limits of one rollout.

    A rollout that reaches one of the first three limits is graded, since the model caused it. One that reaches
    `rollout_timeout_s` is discarded.

    Attributes:
        max_rollout_retries: How often a discarded rollout is repeated, each time with a new trace id.
        straggler_quorum: Share of a training group's rollouts after which `straggler_wait_s` starts.
        straggler_wait_s: Time left for the group's other rollouts then. None: no limit.
        max_failure_rate: While more than this share of recent rollouts was discarded, only probes are started.
    """

    max_tool_calls: Positive = 64
    max_completion_tokens: Positive = 4096
    max_tool_output_tokens: Positive = 2048
    rollout_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    max_rollout_retries: Annotated[int, Field(ge=0, le=10)] = 1
    straggler_quorum: Annotated[float, Field(gt=0, le=1)] = 0.75
    straggler_wait_s: Annotated[float, Field(gt=0)] | None = None
    max_failure_rate: Annotated[float, Field(gt=0, le=1)] = 0.5


class RewardSpec(Strict):
    """Penalties, subtracted only from positive grades so that giving up early never pays."""

    tool_call_budget: Annotated[int, Field(ge=0)] = 0
    tool_call_penalty: Rate = 0.0
    token_penalty: Rate = 1e-5
    time_penalty_per_s: Rate = 0.0


class AlgorithmSpec(OptimizerSpec):
    """How rewards become weight updates.

    `temperature` is the sampling temperature of training. top_p is always 1 and top_k off, because the learner cannot
    reproduce the log-probabilities of a truncated distribution.
    """

    advantage: Advantage = "centred"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    importance_cap: Annotated[float, Field(ge=1)] = 2.0
    kl_coef: Rate = 0.0
    max_staleness: Annotated[int, Field(ge=0)] = 1
    updates_per_batch: Positive = 1
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0


class Reinforcement(Strict):
    """`method.reinforcement` of OpenAI's API, and extensions of self-hosted jobs.

    The grade of `held_out_grader` is logged and never trained on. If it falls while the grade rises, the grader is
    being hacked.
    """

    tools: tuple[ToolSpec, ...] = ()
    session: SessionSpec | None = None
    grader: GraderSpec
    guards: tuple[GuardSpec, ...] = ()
    held_out_grader: GraderSpec | None = None
    max_episode_steps: Positive = 64
    response_format: dict[str, Any] | None = None
    hyperparameters: Hyperparameters = Hyperparameters()
    limits: RolloutLimits = RolloutLimits()
    reward: RewardSpec = RewardSpec()
    algorithm: AlgorithmSpec = AlgorithmSpec()

    @field_validator("tools")
    @classmethod
    def _names_are_unique(cls, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        names = [tool.name for tool in tools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"tool names must be unique, but these are duplicated: {', '.join(twice)}")
        return tools

    @field_validator("response_format")
    @classmethod
    def _json_schema_of(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """Accept the form of chat completions and that of responses; keep only the JSON schema."""
        if value is None or value.get("type") == "text":
            return None
        if value.get("type") != "json_schema":
            raise ValueError("type must be json_schema, text or null")
        schema = value.get("json_schema", value).get("schema")
        if not isinstance(schema, dict):
            raise ValueError("json_schema.schema must be an object")
        return schema


# -- supervised --------------------------------------------------------------------------------------------------------


class SupervisedAlgorithm(OptimizerSpec):
    """Optimizer and loss. `context_weight` is the loss weight of tokens outside the assistant's turns (0: none)."""

    context_weight: Rate = 0.0


class Supervised(Strict):
    """`method.supervised`: cross-entropy on the assistant's tokens of whole conversations."""

    hyperparameters: CommonHyperparameters = CommonHyperparameters()
    algorithm: SupervisedAlgorithm = SupervisedAlgorithm()


class Method(Strict):
    type: Literal["reinforcement", "supervised"]
    reinforcement: Reinforcement | None = None
    supervised: Supervised | None = None

    @model_validator(mode="after")
    def _has_what_its_type_says(self) -> Method:
        if self.type == "reinforcement" and self.reinforcement is None:
            raise ValueError("type is reinforcement, but reinforcement is missing")
        other = self.supervised if self.type == "reinforcement" else self.reinforcement
        if other is not None:
            raise ValueError(f"type is {self.type}, but the settings of another method are given")
        return self


# -- cluster -----------------------------------------------------------------------------------------------------------


class ClusterSpec(Strict):
    """Resources of a job.

    Attributes:
        dispatchers: Number of dispatcher actors; they share each endpoint's limits.
        colocated: Engines and learner ranks take turns on the same cores. Requires `max_staleness` 0.
        engine_gpus: GPUs per engine. auto: 1 if the cluster has GPUs, else 0. If engines have GPUs, each learner rank
            gets one GPU.
        dtype: auto: bfloat16 on GPUs, float32 on CPUs.
        context_length: In tokens. auto: the model's maximum, but at most 16,384.
        weight_transport: How new weights reach the engines: through Ray's object store, or by one broadcast (not yet
            tested between GPUs).
    """

    engines: Positive = 1
    learner_ranks: Positive = 1
    engine_cores: Positive = 1
    rank_cores: Positive = 1
    dispatchers: Positive = 1
    colocated: bool = False
    engine_gpus: Annotated[int, Field(ge=0)] | Auto = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    context_length: Positive | Auto = "auto"
    max_num_seqs: Positive = 64
    tool_parser: str = "hermes"
    micro_batch_tokens: Positive = 8192
    weight_transport: Literal["object_store", "broadcast"] = "object_store"


class JobSpec(Strict):
    """One fine-tuning job. Paths are relative to the job file; `model` is a folder or a Hugging Face name."""

    model: str
    training_file: str
    validation_file: str | None = None
    test_file: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    suffix: Annotated[str, Field(max_length=64)] | None = None
    method: Method
    cluster: ClusterSpec = ClusterSpec()

    @property
    def reinforcement(self) -> Reinforcement:
        if self.method.reinforcement is None:
            raise ValueError("not a reinforcement job")
        return self.method.reinforcement

    @property
    def supervised(self) -> Supervised:
        if self.method.type != "supervised":
            raise ValueError("not a supervised job")
        return self.method.supervised or Supervised()


# -- how auto is resolved ----------------------------------------------------------------------------------------------


class Plan(Strict):
    """The resolved numbers of a job; printed before the start and kept in the run folder."""

    num_rows: int
    batch_size: int
    n_epochs: int
    group_size: int
    steps: int
    eval_interval: int
    eval_samples: int
    updates_per_batch: int
    learning_rate: float
    max_thinking_tokens: int | None

    @property
    def rollouts_per_step(self) -> int:
        return self.batch_size * self.group_size


THINKING_TOKENS = {"default": None, "low": 512, "medium": 2048, "high": 8192}


def resolve(job: JobSpec, num_rows: int) -> Plan:
    """Resolve every `auto` of a job whose training file has `num_rows` rows.

    Defaults: batch_size = min(16, rows); n_epochs = max(1, round(320 / rows)); multipliers = 1;
    eval_interval = max(1, steps // 4); eval_samples = 1. Derived: group_size = max(2, round(8 x compute_multiplier)),
    or 1 for supervised jobs; steps = ceil(rows x epochs / batch_size). Batches cross epoch boundaries, so a batch may
    be larger than the file.
    """
    if job.method.type == "supervised":
        hp: CommonHyperparameters = job.supervised.hyperparameters
        learning_rate, updates = job.supervised.algorithm.learning_rate, 1
        compute, samples, thinking = 0.0, 1, None
    else:
        hp = rl = job.reinforcement.hyperparameters
        algorithm = job.reinforcement.algorithm
        learning_rate, updates = algorithm.learning_rate, algorithm.updates_per_batch
        compute = _or(rl.compute_multiplier, 1.0)
        samples = int(_or(rl.eval_samples, 1))
        thinking = THINKING_TOKENS[rl.reasoning_effort]
    batch_size = int(_or(hp.batch_size, min(16, num_rows)))
    n_epochs = int(_or(hp.n_epochs, max(1, round(320 / num_rows))))
    steps = math.ceil(num_rows * n_epochs / batch_size)
    return Plan(
        num_rows=num_rows,
        batch_size=batch_size,
        n_epochs=n_epochs,
        group_size=max(2, round(8 * compute)) if job.method.type == "reinforcement" else 1,
        steps=steps,
        eval_interval=int(_or(hp.eval_interval, max(1, steps // 4))),
        eval_samples=samples,
        updates_per_batch=updates,
        learning_rate=learning_rate * _or(hp.learning_rate_multiplier, 1.0),
        max_thinking_tokens=thinking,
    )


def _or(value: float | Literal["auto"], default: float) -> float:
    return default if value == "auto" else value
