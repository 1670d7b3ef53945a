"""The settings of a job, in the shape of OpenAI's fine-tuning API.

The models are frozen and reject unknown keys; names of settings include their units. Defaults work on two CPU cores
(one engine and one learner rank, one core each) and on GPUs.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from agent_rft.spec.endpoints import MOST, Positive, Processes, Rate, SessionSpec, Strict, ToolSpec
from agent_rft.spec.graders import GraderSpec, GuardSpec
from agent_rft.spec.integrations import Integrations
from agent_rft.spec.model_options import LoraSpec, ModelOptions
from agent_rft.spec.offload import Offload


class EarlyStop(Strict):
    """Ends a job that has stopped gaining, by the mean reward over its validation file."""

    patience: Annotated[int, Field(ge=1, le=1_000)] = 3
    """Validations in a row without a gain after which the job ends; that before the first step counts as the first
    best. Raise it if the reward of validations is noisy, or lower `eval_interval` for more of them."""
    min_gain: Annotated[float, Field(ge=0, le=MOST)] = 0.0
    """By how much a validation's mean reward must exceed the best before it to be a gain. Raise it if small gains are
    not worth the time of their steps."""


Auto = Literal["auto"]
Schedule = Literal["constant", "linear", "cosine"]
Advantage = Literal["centred", "grpo", "rloo"]
FILES = ("training_file", "validation_file", "test_file")
"""The fields of a job that name files."""


# -- common to both methods --------------------------------------------------------------------------------------------


class CommonHyperparameters(Strict):
    """Hyperparameters of both methods."""

    batch_size: Positive | Auto = "auto"
    """Rows of the training file per step; auto: 16, or all rows of a smaller file. More rows make each update less
    noisy and each step longer."""
    n_epochs: Positive | Auto = "auto"
    """Passes over the training file; auto: as many as needed for about 320 rows in total, at least 1. Lower it if
    validation stops improving."""
    learning_rate_multiplier: Annotated[float, Field(gt=0)] | Auto = "auto"
    """Factor of `algorithm.learning_rate`; auto: 1. Lower it if the reward or the entropy collapses, raise it if
    nothing changes over many steps."""
    eval_interval: Positive | Auto = "auto"
    """Steps between validations, each of which also saves a checkpoint; auto: a quarter of all steps."""


class OptimizerSpec(Strict):
    """AdamW, with gradients clipped to norm 1."""

    learning_rate: Annotated[float, Field(gt=0)] | Auto = "auto"
    """Base learning rate, the size of each update; auto: by the number of the model's parameters, 1e-6 at 8 billion
    (supervised: 1e-5) and larger for smaller models, ten times that with `lora`. Too high and training collapses, too
    low and nothing is learned."""
    lr_schedule: Schedule = "constant"
    """How the learning rate changes after the warm-up: constant, linear (falls to 0 at the last step) or cosine (falls
    to 0, slowly at first)."""
    warm_up_steps: Annotated[int, Field(ge=0, le=MOST)] | Auto = "auto"
    """Steps in which the learning rate rises evenly to its full value; auto: the first 3 % of the steps. AdamW's first
    updates move every weight by about the whole rate, also those without a clear gradient. If the grade falls in the
    first steps of a job with a learning rate above auto, try 5 to 10, or a lower rate."""
    lora: LoraSpec | Auto | Literal["off"] | None = "auto"
    """Train an adapter of megabytes next to the model's weights, which stay; `{}` has good defaults; off or null: all
    weights are trained. An adapter needs a fraction of the memory, and learns as much from reinforcement. auto: all
    weights, unless they fit the GPUs of the cluster only with `cluster.offload` or not at all; then an adapter of rank
    32 if that fits."""

    @field_validator("lora", mode="before")
    @classmethod
    def _off_is_null(cls, value: Any) -> Any:
        """Read `off` as null; YAML reads it as false."""
        return None if value in ("off", False) else value

    @property
    def adapter(self) -> LoraSpec | None:
        """The adapter to train, None for all weights. An `auto` counts as None: planning replaces it."""
        return self.lora if isinstance(self.lora, LoraSpec) else None


# -- reinforcement -----------------------------------------------------------------------------------------------------


class Hyperparameters(CommonHyperparameters):
    """Hyperparameters of reinforcement, with OpenAI's names."""

    compute_multiplier: Annotated[float, Field(gt=0, le=MOST)] | Auto = "auto"
    """Rollouts per row: max(2, round(8 x compute_multiplier)); auto: 1, and up to 2 for files of fewer than 16 rows.
    The model learns from the differences between the rollouts of one row, so raise it if most rows have all rollouts
    right or all wrong; cost grows in proportion."""
    eval_samples: Positive | Auto = "auto"
    """Rollouts per row of the validation and test file, averaged; auto: 1. Raise it for small files, whose mean is
    noisy."""
    reasoning_effort: Literal["default", "low", "medium", "high"] = "default"
    """Most thinking tokens per turn: low 512, medium 2048, high 8192, default: no limit. It is also passed to the chat
    template if it has such an option; it has no effect on a model without thinking."""


WAIT_FACTOR = 6
"""How long a rollout may wait, as a multiple of its model and tool time: at the defaults an hour, for a burst at one
endpoint passes within minutes."""


class RolloutLimits(Strict):
    """Limits of one rollout.

    A rollout that reaches one of the first three limits is graded, since the model caused it. One that reaches
    `rollout_timeout_s` is discarded.
    """

    max_tool_calls: Positive = 64
    """Most tool calls of one rollout. Further calls are not sent; the model is told to answer now."""
    max_completion_tokens: Positive = 4096
    """Most tokens that the model samples in one rollout, over all turns. At the limit the rollout ends and what there
    is of an answer is graded."""
    max_tool_output_tokens: Positive = 2048
    """Most tokens of one tool result that the model sees. A longer result is truncated and marked."""
    rollout_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Seconds of model and tool time of one rollout. One that takes longer is discarded, not graded 0: raise this if
    your tools are slow. Waiting does not count: for a slot of its engine, a session, the limits and retries of tools,
    and its grade. One that waits for more than six times as long is discarded, too, and its event says for what."""
    max_rollout_retries: Annotated[int, Field(ge=0, le=10)] = 1
    """How often a discarded rollout is repeated, each time under a new trace id; one lost with its engine is repeated
    once more. After that its group continues without it if at least half of the group, and two, are graded; a training
    group is otherwise sampled again, once."""
    straggler_wait_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds that the rest of a training group has left once three quarters of it have ended; null: no limit. Set it
    if a few slow rollouts hold up the steps; rollouts that have not ended by then are discarded. Validation always
    waits."""
    max_failure_rate: Annotated[float, Field(gt=0, le=1)] = 0.5
    """While more than this share of the latest 16 to 64 rollouts was discarded, only probes are started, until one is
    graded. So an endpoint that is down costs time and no data. Rollouts lost with their engine do not count."""

    @property
    def wait_timeout_s(self) -> float:
        """Seconds that one rollout may wait in all."""
        return WAIT_FACTOR * self.rollout_timeout_s


class RewardSpec(Strict):
    """Penalties, subtracted only from positive grades, which keep at least a tenth: giving up early never pays.

    Rollouts of a row that have equal grades are trained on only if penalties make their rewards differ by 0.001.
    """

    tool_call_budget: Annotated[int, Field(ge=0)] = 0
    """Tool calls of a rollout that cost nothing."""
    tool_call_penalty: Rate = 0.0
    """Subtracted from the grade for each tool call above `tool_call_budget`. Raise it for an agent that calls too
    often."""
    turn_penalty: Rate = 0.0
    """Subtracted from the grade for each turn of the model after its first. Calls that it makes in one turn go out
    together, so set it for an agent that should not make them one by one."""
    token_penalty: Rate = 0.0
    """Subtracted from the grade for each sampled token; 1e-5 takes 0.01 for 1,000 tokens. Set it for shorter answers,
    and leave it at 0 if long reasoning is wanted."""
    time_penalty_per_s: Rate = 0.0
    """Subtracted from the grade for each second of model and tool time. Timing is noisy, so prefer the penalties on
    calls and tokens."""


class AlgorithmSpec(OptimizerSpec):
    """How rewards become weight updates: AdamW on a clipped surrogate, with gradients clipped to norm 1."""

    advantage: Advantage = "centred"
    """How a rollout's reward is compared with those of its group: centred (difference from the mean), grpo (the same,
    divided by the standard deviation), rloo (difference from the mean of the others)."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """How far an update may lower a token's probability: not below 1 - clip_low times the value before the batch. It
    only matters if `updates_per_batch` is above 1; lower is more careful."""
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    """How far an update may raise a token's probability: not above 1 + clip_high times the value before the batch.
    Larger than `clip_low`, so that rare tokens can become likely and entropy lasts."""
    importance_cap: Annotated[float, Field(ge=1)] = 2.0
    """Largest weight of a token that the engine sampled with another probability than the learner gives it, because it
    was older or computed differently. Lower is more stable, higher less biased."""
    max_divergence: Annotated[float, Field(gt=0, lt=1)] | None = 0.2
    """How far a sampled token's probability may move from the one that the engine sampled it with. Beyond it the token
    is not trained further in that direction, however many updates there are and however old it is; null: no limit.
    Lower is more stable, higher learns faster from old rollouts."""
    kl_coef: Rate = 0.0
    """Weight of the KL divergence from the start model in the loss; 0: none. Raise it (0.001 to 0.05) if the model
    drifts, for example its language degrades. Each learner rank then holds a second copy of the model; with `lora` the
    frozen weights are that copy."""
    router_replay: bool = False
    """Train each token of a mixture of experts with the experts that the engine chose for it: the learner rounds
    differently and would choose others for some. Set it to true if `logprob_gap` is large. On GPUs it needs vLLM's
    second model runner, and was not run yet."""
    max_staleness: Annotated[int, Field(ge=0, le=1_000)] = 1
    """How many weight updates old a trained token may be. 0: engines wait while the learner works (strictly on-policy);
    1: both work at once; more hides longer rollouts and makes training less stable."""
    updates_per_batch: Annotated[int, Field(ge=1, le=100_000)] = 2
    """Optimizer steps per batch, each on a part of it. More learn faster from the same rollouts, and less stably."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Sampling temperature of training. Lower explores less; top_p is always 1 and top_k off, because the learner
    cannot reproduce the log-probabilities of a truncated distribution."""
    eval_temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature of validation and test; null: that of training. Set it to the one that your agent samples
    with in use: 0 always takes the most likely token, so that `eval_samples` above 1 tell nothing more."""

    @property
    def temperature_of_evaluations(self) -> float:
        return self.temperature if self.eval_temperature is None else self.eval_temperature


class Reinforcement(Strict):
    """How to learn from graded rollouts: OpenAI's settings, and extensions of self-hosted jobs."""

    tools: tuple[ToolSpec, ...] = ()
    """The tools that the model may call, each behind HTTP. The dataset's rows say which of them a task has, and
    describe their arguments."""
    session: SessionSpec | None = None
    """Requests to your server at the start and end of each rollout, for tools that keep a state per rollout; null: no
    requests."""
    signing_secret: SecretStr | Annotated[tuple[SecretStr, ...], Field(min_length=1, max_length=8)] | None = None
    """Signs each call of tools, sessions and endpoint graders as Standard Webhooks does, so that your server knows who
    called: `whsec_` and base64 of 24 to 64 random bytes, written as `${NAME}`; null: not signed. Of a list each signs,
    so that a secret can be replaced while the server accepts both."""
    grader: GraderSpec
    """What gives each rollout its grade, a finite number, higher is better. It is the goal of the training."""
    guards: tuple[GuardSpec, ...] = ()
    """Checks for behaviour that must not be rewarded; a guard that applies replaces the reward."""
    held_out_grader: GraderSpec | None = None
    """A second grader that is logged as `held_out_grade_mean` and never trained on; null: no second grade. If its grade
    falls while the grade rises, the grader is being hacked."""
    max_episode_steps: Positive = 64
    """Most steps of one rollout, where each turn of the model and each tool call is a step. At the limit the rollout
    ends and is graded."""
    response_format: dict[str, Any] | None = None
    """JSON schema of the answer, as in chat completions or in responses: decoding is constrained to tool calls or an
    answer that matches it; null: free text."""
    hyperparameters: Hyperparameters = Hyperparameters()
    """OpenAI's hyperparameters; each can be auto."""
    limits: RolloutLimits = RolloutLimits()
    """Limits of one rollout."""
    reward: RewardSpec = RewardSpec()
    """Penalties that turn a grade into a reward."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    """Learning rate, advantages, clipping, staleness and temperature."""
    early_stop: EarlyStop | None = None
    """End the job once its validations stop gaining, with the best checkpoint as its model; null: train all steps. It
    needs a `validation_file`."""

    @field_validator("tools")
    @classmethod
    def _names_are_unique(cls, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        names = Counter(tool.name for tool in tools)
        twice = sorted(name for name, times in names.items() if times > 1)
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


class Supervised(Strict):
    """How to imitate whole conversations, whose last message is the assistant's: cross-entropy on its tokens."""

    hyperparameters: CommonHyperparameters = CommonHyperparameters()
    """OpenAI's hyperparameters; each can be auto."""
    algorithm: OptimizerSpec = OptimizerSpec()
    """Learning rate, its schedule, and whether to train an adapter."""


class Method(Strict):
    """How to train: only the settings of the given type may be there."""

    type: Literal["reinforcement", "supervised"]
    """reinforcement: learn from graded rollouts; supervised: imitate whole conversations, the usual step before it."""
    reinforcement: Reinforcement | None = None
    """Settings of a reinforcement job; required by that type."""
    supervised: Supervised | None = None
    """Settings of a supervised job; all have defaults."""

    @model_validator(mode="after")
    def _has_what_its_type_says(self) -> Method:
        if self.type == "reinforcement" and self.reinforcement is None:
            raise ValueError("type is reinforcement, but reinforcement is missing")
        other = self.supervised if self.type == "reinforcement" else self.reinforcement
        if other is not None:
            raise ValueError(f"type is {self.type}, but the settings of another method are given")
        return self


# -- cluster -----------------------------------------------------------------------------------------------------------


class CheckpointInterval(Strict):
    """When to save a checkpoint beside those of validations: once either has passed since the last checkpoint."""

    minutes: Annotated[float, Field(gt=0, le=10_080)] | None = 15.0
    """Minutes of training between checkpoints; null: no limit. After a loss at most this much is computed again; lower
    it where machines are often taken away. While writing a checkpoint takes longer, they become twice that time."""
    steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Steps between checkpoints; null: no limit. Set it where steps are long and each is worth keeping. Training waits
    if writing a checkpoint takes longer than these steps."""

    def has_passed(self, seconds: float, steps: int) -> bool:
        """Whether a checkpoint is due, this long after the last one."""
        return (self.minutes is not None and seconds >= 60 * self.minutes) or (
            self.steps is not None and steps >= self.steps
        )

    def for_writes(self, seconds: float) -> CheckpointInterval:
        """This interval, with minutes of twice `seconds`, the time of a write, if it takes longer than the minutes."""
        if self.minutes is None or seconds <= 60 * self.minutes:
            return self
        return self.model_copy(update={"minutes": seconds / 30})

    def __str__(self) -> str:
        limits = []
        if self.minutes:
            limits.append("minute" if self.minutes == 1 else f"{self.minutes:g} minutes")
        if self.steps:
            limits.append("step" if self.steps == 1 else f"{self.steps} steps")
        return " or ".join(limits)


class ClusterSpec(Strict):
    """Resources of a job, and how its model is held in memory."""

    engines: Processes | Auto = "auto"
    """vLLM engines, each a full copy of the model that samples rollouts. More of them shorten the sampling of a step;
    the job starts with the first and the others join when there is room. auto: as many as fit on half of the GPUs; 1
    on CPUs."""
    learner_ranks: Processes | Auto = "auto"
    """Processes that train, each on its share of a batch. More of them shorten the learning of a step, and with
    `zero_stage` each needs less memory. auto: one for each GPU that no engine has; 1 on CPUs."""
    engine_cores: Processes | Auto = "auto"
    """CPU cores of each engine. On CPUs it computes with them; on GPUs a few are enough for tokenizing and tool
    calls. auto: the cores of a node divided by its GPUs, at most 4 for each GPU; 1 on CPUs."""
    rank_cores: Processes | Auto = "auto"
    """CPU cores, and threads, of each learner rank. auto: the cores of a node divided by its GPUs, at most 16; 1 on
    CPUs."""
    colocated: bool | Auto = "auto"
    """Engines and learner ranks share the same GPUs or cores, which needs fewer of them and takes longer; auto: if the
    cluster has one GPU. They share a GPU's memory if both fit at once, else they take turns; on cores they always do.
    Then nothing is stale, whatever `max_staleness` allows."""
    share_engines: bool = False
    """Use engines together with other jobs that train adapters (`algorithm.lora`) of the same model, each with its own
    versions. The first such job starts them, and they end a minute after the last. They must have the same
    `engine_cores`, `engine_gpus`, `dtype`, `context_length`, `max_num_seqs` and rank, rounded up to a power of two."""
    engine_gpus: Annotated[int, Field(ge=0, le=1_024)] | Auto = "auto"
    """GPUs per engine; auto: the fewest with which an engine holds four sequences of `context_length`, or else one; 0
    if the cluster has no GPUs. More than 1 splits a model that is too large for one GPU. If engines have GPUs, each
    learner rank has one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the weights; auto: bfloat16 on GPUs, float32 on CPUs. bfloat16 is refused on CPUs."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] | Auto = "auto"
    """What DeepSpeed's ZeRO divides among the learner ranks instead of keeping it on each: 1 the optimizer's state, 2
    also gradients, 3 also weights. Raise it if ranks run out of memory; it costs communication. In bfloat16 0 means
    1. auto: the lowest that fits; 0 on CPUs."""
    offload: Offload | Auto = "auto"
    """What learner ranks on GPUs keep in their nodes' memory: optimizer (its state, most of what full training needs,
    and the update is computed on `rank_cores`) or optimizer_and_activations (also what the backward pass needs, for
    long contexts). Each makes a step slower; on CPUs all is in the node's memory anyway. auto: none if that fits, also
    with LoRA if `algorithm.lora` is auto."""
    context_length: Annotated[int, Field(ge=1, le=100_000_000)] | Auto = "auto"
    """Longest conversation in tokens, with prompt and tool results; auto: the model's maximum, but at most 16,384. A
    rollout that reaches it ends and is graded; less context needs less memory."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] | Auto = "auto"
    """Sequences that an engine decodes at a time; further ones wait. More use a GPU better, as long as its cache holds
    them. auto: at most 256, of which the cache holds a quarter at full length; 64 on CPUs and for shared engines."""
    micro_batch_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | Auto = "auto"
    """Tokens that a learner rank computes at a time; auto: 8,192 or `context_length`, whichever is larger. If that does
    not fit in memory, auto is the largest smaller multiple of 1,024 that fits and holds `context_length`, or
    `context_length` itself. A sequence that is longer than a given number is computed alone. Lower it if a rank runs
    out of memory; the result is the same up to rounding."""
    weight_transport: Literal["object_store", "broadcast"] = "object_store"
    """How engines get new weights, which the learner first gathers into Ray's object store: object_store (each engine
    copies them from there while it samples, and pauses only to load them) or broadcast (learner rank 0 sends them to
    all engines at once while these pause; not yet run between GPUs). An adapter (`algorithm.lora`) always uses
    object_store."""
    checkpoint_interval: CheckpointInterval = CheckpointInterval()
    """When checkpoints are saved from which a lost run goes on, apart from validations. Like all of `cluster` it may be
    changed on resume."""


class JobSpec(Strict):
    """One fine-tuning job."""

    model: str
    """The start model: a folder, relative to the job file or from `~` on, or a Hugging Face name downloaded with
    `hf download`. In the API: a base model of the server (the operator's `aliases`) or a tuned model."""
    training_file: str
    """JSONL file of tasks, one JSON object a line, relative to the job file or from `~` on. In the API: the id of an
    uploaded file."""
    validation_file: str | None = None
    """JSONL file that is graded before the first step and every `eval_interval` steps (a supervised job: its loss);
    null: no validation. Its mean reward decides which three checkpoints are kept beside the last."""
    test_file: str | None = None
    """JSONL file that is graded before and after training; null: no test. It is not used for any decision."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the order of rows and of sampling."""
    suffix: Annotated[str, Field(max_length=64)] | None = None
    """Part of the name of the run's folder, and of the tuned model in the API; at most 64 characters."""
    method: Method
    """How to train, with the settings of that method."""
    model_options: ModelOptions = ModelOptions()
    """How the model writes conversations: its chat template, tool calls and ends of turns."""
    integrations: Integrations = ()
    """Experiment trackers that get the numbers of each step and evaluation, and the job's hyperparameters: never rows,
    texts or addresses. One that cannot be used is a warning, and the job goes on."""
    cluster: ClusterSpec = ClusterSpec()
    """Resources of the job."""

    @property
    def reinforcement(self) -> Reinforcement:
        if self.method.reinforcement is None:
            raise ValueError("not a reinforcement job")
        return self.method.reinforcement

    @property
    def optimizer(self) -> OptimizerSpec:
        """The settings of AdamW of the job's method."""
        return (self.method.reinforcement or self.supervised).algorithm

    def with_adapter(self, lora: LoraSpec | None) -> JobSpec:
        """The job that trains this adapter, or all weights."""
        method, section = self.method, self.method.reinforcement or self.supervised
        algorithm = section.algorithm.model_copy(update={"lora": lora})
        changed = method.model_copy(update={method.type: section.model_copy(update={"algorithm": algorithm})})
        return self.model_copy(update={"method": changed})

    @property
    def supervised(self) -> Supervised:
        if self.method.type != "supervised":
            raise ValueError("not a supervised job")
        return self.method.supervised or Supervised()
