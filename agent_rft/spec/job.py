"""Settings of a job, in the format of OpenAI's fine-tuning API.

The pydantic models are frozen and reject unknown keys; names of settings include their units. Defaults work on two CPU
cores (one engine and one learner rank, one core each) and on GPUs.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from agent_rft.spec.endpoints import MAX_COUNT, PositiveInt, ProcessCount, Rate, SessionSpec, StrictModel, ToolSpec
from agent_rft.spec.graders import GraderSpec, GuardSpec
from agent_rft.spec.model_options import LoraSpec, ModelOptions
from agent_rft.spec.offload import Offload
from agent_rft.spec.trackers import Integrations


class EarlyStop(StrictModel):
    """Early stopping once the mean validation reward stops rising."""

    patience: Annotated[int, Field(ge=1, le=1_000)] = 3
    """Number of consecutive validations without a gain after which the job ends. The validation before the first step
    sets the initial best reward. Raise this if the validation reward is noisy, or lower `eval_interval` to validate
    more often."""
    min_gain: Annotated[float, Field(ge=0, le=MAX_COUNT)] = 0.0
    """Amount by which a validation's mean reward must exceed the previous best to count as a gain. Raise it if small
    gains are not worth the time of further steps."""


Auto = Literal["auto"]
Schedule = Literal["constant", "linear", "cosine"]
Advantage = Literal["centered", "grpo", "rloo"]
FILES = ("training_file", "validation_file", "test_file")
"""Fields of a job that name files."""


# -- common to both methods --------------------------------------------------------------------------------------------


class CommonHyperparameters(StrictModel):
    """Hyperparameters that reinforcement and supervised jobs have in common."""

    batch_size: PositiveInt | Auto = "auto"
    """Rows of the training file per step; auto: 16, or all rows of a smaller file. More rows make each update less
    noisy and each step longer."""
    n_epochs: PositiveInt | Auto = "auto"
    """Passes over the training file; auto: as many as needed for about 320 rows in total, at least 1. Lower it if
    validation stops improving."""
    learning_rate_multiplier: Annotated[float, Field(gt=0)] | Auto = "auto"
    """Multiplier of `algorithm.learning_rate`; auto: 1. Lower it if the reward or the entropy collapses; raise it if
    nothing changes over many steps."""
    eval_interval: PositiveInt | Auto = "auto"
    """Steps between validations, each of which also saves a checkpoint; auto: a quarter of all steps."""


class OptimizerSpec(StrictModel):
    """Settings of the optimizer: AdamW, with gradients clipped to norm 1."""

    learning_rate: Annotated[float, Field(gt=0)] | Auto = "auto"
    """Base learning rate, the size of each update. auto: 1e-6 for 8 billion parameters (supervised: 1e-5), more for
    smaller models, and ten times as much with `lora`. Training collapses if the rate is too high, and the model learns
    nothing if it is too low."""
    lr_schedule: Schedule = "constant"
    """Change of the learning rate after the warm-up: constant, linear (falls to 0 at the last step) or cosine (falls to
    0, slowly at first)."""
    warm_up_steps: Annotated[int, Field(ge=0, le=MAX_COUNT)] | Auto = "auto"
    """Steps in which the learning rate rises linearly to its full value; auto: the first 3 % of the steps. AdamW's
    first updates move every weight by about the full rate, even weights without a clear gradient. If `learning_rate` is
    higher than its auto value and the grade falls in the first steps, try 5 to 10 steps, or a lower rate."""
    lora: LoraSpec | Auto | Literal["off"] | None = "auto"
    """LoRA adapter to train instead of the model's weights, which stay frozen. `{}` uses good defaults; off or null:
    train all weights. With reinforcement, an adapter learns as much as the full model. It needs a fraction of the
    memory, and its checkpoints are small. auto: train all weights if they fit on the cluster's GPUs without
    `cluster.offload`; otherwise an adapter of rank 32 if that fits."""

    @field_validator("lora", mode="before")
    @classmethod
    def _convert_off(cls, value: Any) -> Any:
        """Convert `off` to null. YAML parses `off` as false."""
        return None if value in ("off", False) else value

    @property
    def adapter(self) -> LoraSpec | None:
        """Adapter to train; None: all weights are trained. `auto` counts as None until planning has replaced it."""
        return self.lora if isinstance(self.lora, LoraSpec) else None


# -- reinforcement -----------------------------------------------------------------------------------------------------


class Hyperparameters(CommonHyperparameters):
    """Hyperparameters of a reinforcement job, with OpenAI's names."""

    compute_multiplier: Annotated[float, Field(gt=0, le=MAX_COUNT)] | Auto = "auto"
    """Multiplier of the rollouts per row: max(2, round(8 x compute_multiplier)) rollouts are sampled. auto: 1, or
    min(2, 16 / rows) for a file with fewer than 16 rows. The model learns from differences between the rollouts of a
    row. Raise the multiplier if most rows have only right or only wrong rollouts; the cost grows in proportion."""
    eval_samples: PositiveInt | Auto = "auto"
    """Rollouts per row of the validation file and the test file; auto: 1. The grades of a row's rollouts are averaged.
    Raise it for small files, because the mean grade of a small file is noisy."""
    reasoning_effort: Literal["default", "low", "medium", "high"] = "default"
    """Maximum number of reasoning tokens per turn: low 512, medium 2048, high 8192, default: no limit. If the chat
    template has an argument for the reasoning effort, the setting's value is also passed to the template. The setting
    has no effect on a model without reasoning."""


WAIT_FACTOR = 6
"""Maximum total wait of a rollout, as a multiple of `rollout_timeout_s`. With the default of 600 s, a rollout waits at
most an hour. An endpoint usually recovers from a burst of calls within minutes."""


class RolloutLimits(StrictModel):
    """Limits of one rollout.

    A rollout that reaches `max_tool_calls`, `max_completion_tokens` or `max_tool_output_tokens` is graded, because the
    model's behavior is the cause. `on_timeout` decides whether a rollout that reaches `rollout_timeout_s` is graded or
    discarded.
    """

    max_tool_calls: PositiveInt = 64
    """Maximum number of tool calls per rollout. Further calls are not sent; instead, the model is asked to answer
    immediately."""
    max_completion_tokens: PositiveInt = 4096
    """Maximum number of tokens that the model samples in one rollout, over all turns. At the limit, the rollout ends
    and the partial answer is graded."""
    max_tool_output_tokens: PositiveInt = 2048
    """Maximum number of tokens per tool result. A longer result is truncated and marked as truncated."""
    rollout_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Maximum seconds of model and tool time per rollout. A rollout that takes longer is discarded, unless `on_timeout`
    is grade; it does not get a grade of 0. Raise this if your tools are slow. The time spent waiting for engines,
    sessions, rate limits, retries and grades does not count. A rollout that waits longer than six times this limit is
    always discarded."""
    on_timeout: Literal["discard", "grade"] = "discard"
    """Whether a rollout that reaches `rollout_timeout_s` is discarded or graded. With `grade`, the rollout is graded if
    the model caused the timeout, and discarded otherwise. The model caused the timeout if sampling took more than half
    of the model and tool time, and no tool call was in flight. The rollout then ends after its current turn, and the
    calls of this turn are not sent. Set it to `grade` if the model should learn not to exceed the limit."""
    max_rollout_retries: Annotated[int, Field(ge=0, le=10)] = 1
    """Maximum retries of a discarded rollout; each retry has a new trace id. A rollout that was lost with its engine is
    repeated once, in addition to these retries. After the last retry, the group continues without the rollout if at
    least half of the group's rollouts, and at least two, are graded. If fewer are graded, a training group is sampled
    once more."""
    straggler_wait_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds that a training group waits for its remaining rollouts once three quarters of the group have ended; null:
    no limit. Rollouts that are still running after that are discarded. Set it if a few slow rollouts delay the steps.
    Validation always waits."""
    max_failure_rate: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Maximum share of discarded rollouts among the latest 64 rollouts. The share is first computed after 16 rollouts.
    If the share exceeds the maximum, rollouts start one at a time until a rollout is graded. An endpoint that is down
    then delays the job, but does not cause many discarded rollouts. Rollouts lost with their engine do not count."""

    @property
    def wait_timeout_s(self) -> float:
        """Maximum seconds that one rollout may wait in total."""
        return WAIT_FACTOR * self.rollout_timeout_s


class RewardSpec(StrictModel):
    """Penalties that are subtracted from positive grades. At least a tenth of a positive grade remains.

    The reward of a positive grade therefore stays positive, and a model gains nothing by giving up early. A row whose
    rollouts all have the same grade is used for training only if penalties make the rewards differ by at least 0.001.
    """

    tool_call_budget: Annotated[int, Field(ge=0)] = 0
    """Tool calls per rollout that have no penalty."""
    tool_call_penalty: Rate = 0.0
    """Penalty for each tool call above `tool_call_budget`. Raise it for an agent that calls too often."""
    turn_penalty: Rate = 0.0
    """Penalty for each turn of the model after the first. Set it to encourage the model to make several calls in one
    turn: the calls of one turn are sent concurrently."""
    token_penalty: Rate = 0.0
    """Penalty for each sampled token: 1e-5 subtracts 0.01 for 1,000 tokens. Set it for shorter answers; leave it at 0
    if long reasoning is useful."""
    time_penalty_per_s: Rate = 0.0
    """Penalty for each second of model and tool time. Timing is noisy, so prefer the penalties on calls and tokens."""


class AlgorithmSpec(OptimizerSpec):
    """Settings of the weight updates: AdamW on a clipped surrogate loss, with gradients clipped to norm 1."""

    advantage: Advantage = "centered"
    """Comparison of a rollout's reward with the rewards of its group: centered (difference from the mean), grpo (the
    same, divided by the standard deviation) or rloo (difference from the mean of the other rollouts)."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Lower clipping bound: an update may not lower a token's probability below (1 - clip_low) times its value before
    the batch. This bound only matters if `updates_per_batch` is above 1. Lower values are more cautious."""
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    """Upper clipping bound: an update may not raise a token's probability above (1 + clip_high) times its value before
    the batch. It is larger than `clip_low`, so that rare tokens can become likely and entropy does not collapse."""
    importance_cap: Annotated[float, Field(ge=1)] = 2.0
    """Maximum importance weight of a token. The weight corrects for an engine that sampled with older weights or
    different rounding than the learner. Lower is more stable, higher is less biased."""
    max_divergence: Annotated[float, Field(gt=0, lt=1)] | None = 0.2
    """Maximum difference between a token's current probability and the probability with which the engine sampled the
    token; null: no limit. A token above the maximum is left out of updates that would increase the difference. Lower
    values are more stable; higher values learn faster from old rollouts."""
    kl_coef: Rate = 0.0
    """Weight of the KL term in the loss; 0: no KL term. The term is the KL divergence from the reference model, which
    has the initial weights. Raise the weight (0.001 to 0.05) if the model drifts, for example if its language degrades.
    If the weight is above 0, each learner rank holds the weights of a second model, or its part of them with ZeRO
    stage 3. With `lora`, the frozen weights serve as the reference model."""
    router_replay: bool = False
    """Train each token of a mixture of experts with the experts that the engine chose. Otherwise the learner chooses
    different experts for some tokens, because its rounding differs. Set it to true if `logprob_gap` is large. On GPUs
    it requires vLLM's second model runner and has not been tested."""
    max_staleness: Annotated[int, Field(ge=0, le=1_000)] = 1
    """Maximum number of weight updates between sampling a token and training on it. 0: engines wait while the learner
    works (strictly on-policy); 1: engines and learner work concurrently. Higher values avoid waits for long rollouts
    but are less stable."""
    updates_per_batch: Annotated[int, Field(ge=1, le=100_000)] = 2
    """Optimizer steps per batch, each on a part of the batch. With more steps, the model learns faster from the same
    rollouts, but training is less stable."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Sampling temperature of training. Lower values explore less. top_p is always 1 and top_k off, because the learner
    cannot reproduce the log-probabilities of a truncated distribution."""
    eval_temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature of validation and test; null: the temperature of training. Set it to the temperature of your
    agent in production. 0 always samples the most likely token, so `eval_samples` above 1 add no information."""

    @property
    def evaluation_temperature(self) -> float:
        """Sampling temperature of validation and test: `eval_temperature` or, if that is None, `temperature`."""
        return self.temperature if self.eval_temperature is None else self.eval_temperature


class Reinforcement(StrictModel):
    """Settings of a job that learns from graded rollouts: OpenAI's settings, plus extensions for self-hosted jobs."""

    tools: tuple[ToolSpec, ...] = ()
    """Tools that the model may call. Each tool is called over HTTP. The dataset's rows list the tools of each task and
    describe their arguments."""
    session: SessionSpec | None = None
    """Requests to your server at the start and end of each rollout, for tools that keep state per rollout; null: no
    requests are sent."""
    signing_secret: SecretStr | Annotated[tuple[SecretStr, ...], Field(min_length=1, max_length=8)] | None = None
    """Secret that signs requests to tools, sessions and endpoint graders as in Standard Webhooks, so that your
    server can verify the sender; null: requests are not signed. Write it as `${NAME}`; its value is `whsec_`
    followed by the base64 of 24 to 64 random bytes. With a list, each request is signed with every secret, so that you
    can replace a secret while the server accepts both."""
    grader: GraderSpec
    """Grader that gives each rollout its grade, a finite number; higher is better. Training maximizes it."""
    guards: tuple[GuardSpec, ...] = ()
    """Checks for behavior that must not be rewarded. If a guard detects such behavior, the guard's `reward` replaces
    the reward of the rollout."""
    held_out_grader: GraderSpec | None = None
    """Second grader, whose grade is logged as `held_out_grade_mean` and never trained on; null: no second grade. If
    this grade falls while the training grade rises, the model is hacking the grader."""
    max_episode_steps: PositiveInt = 64
    """Maximum number of steps per rollout; each turn of the model and each tool call is a step. At the limit, the
    rollout ends and is graded."""
    response_format: dict[str, Any] | None = None
    """JSON schema of the answer, in the format of chat completions or of responses; null: free text. Decoding is
    constrained to tool calls or a matching answer."""
    hyperparameters: Hyperparameters = Hyperparameters()
    """OpenAI's hyperparameters; each can be auto."""
    limits: RolloutLimits = RolloutLimits()
    """Limits of one rollout."""
    reward: RewardSpec = RewardSpec()
    """Penalties that turn a grade into a reward."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    """Learning rate, advantages, clipping, staleness and temperature."""
    early_stop: EarlyStop | None = None
    """Early stopping: the job ends when validations stop improving, and the best checkpoint is its model. null: train
    all steps. Requires a `validation_file`."""

    @field_validator("tools")
    @classmethod
    def _check_unique_names(cls, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
        names = Counter(tool.name for tool in tools)
        duplicates = sorted(name for name, times in names.items() if times > 1)
        if duplicates:
            raise ValueError(f"tool names must be unique, but these are duplicated: {', '.join(duplicates)}")
        return tools

    @field_validator("response_format")
    @classmethod
    def _extract_json_schema(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the JSON schema of a response format of chat completions or responses."""
        if value is None or value.get("type") == "text":
            return None
        if value.get("type") != "json_schema":
            raise ValueError("type must be json_schema, text or null")
        schema = value.get("json_schema", value).get("schema")
        if not isinstance(schema, dict):
            raise ValueError("json_schema.schema must be an object")
        return schema


# -- supervised --------------------------------------------------------------------------------------------------------


class Supervised(StrictModel):
    """Settings of a supervised job, which imitates conversations that end with an assistant's message.

    The loss is the cross-entropy of the assistant's tokens.
    """

    hyperparameters: CommonHyperparameters = CommonHyperparameters()
    """OpenAI's hyperparameters; each can be auto."""
    algorithm: OptimizerSpec = OptimizerSpec()
    """Learning rate, its schedule, and whether to train an adapter."""


class Method(StrictModel):
    """Training method; only the settings of the selected type are allowed."""

    type: Literal["reinforcement", "supervised"]
    """Training method: reinforcement (learn from graded rollouts) or supervised (imitate complete conversations,
    usually as an SFT warm-up)."""
    reinforcement: Reinforcement | None = None
    """Settings of a reinforcement job; required if `type` is reinforcement."""
    supervised: Supervised | None = None
    """Settings of a supervised job; all have defaults."""

    @model_validator(mode="after")
    def _check_settings_of_type(self) -> Method:
        if self.type == "reinforcement" and self.reinforcement is None:
            raise ValueError("type is reinforcement, but the settings `reinforcement` are missing")
        other = self.supervised if self.type == "reinforcement" else self.reinforcement
        if other is not None:
            raise ValueError(f"type is {self.type}, but the settings of another method are given")
        return self


# -- cluster -----------------------------------------------------------------------------------------------------------


class CheckpointInterval(StrictModel):
    """Interval between the checkpoints for resuming a failed run.

    A checkpoint is due when `minutes` minutes or `steps` steps have passed since the last checkpoint.
    """

    minutes: Annotated[float, Field(gt=0, le=10_080)] | None = 15.0
    """Minutes of training between checkpoints; null: checkpoints do not depend on the time. After a failure, at most
    this much training is repeated. Lower it if nodes are often preempted. If writing a checkpoint takes longer than the
    interval, the interval becomes twice the writing time."""
    steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Steps between checkpoints; null: checkpoints do not depend on the number of steps. Set it if steps are long and
    expensive to repeat. If writing a checkpoint takes longer than this number of steps, training waits."""

    def is_due(self, seconds: float, steps: int) -> bool:
        """Return whether a checkpoint is due `seconds` and `steps` after the last checkpoint."""
        return (self.minutes is not None and seconds >= 60 * self.minutes) or (
            self.steps is not None and steps >= self.steps
        )

    def extend_for_writes(self, seconds: float) -> CheckpointInterval:
        """Return the interval for checkpoints that take `seconds` to write.

        If writing takes longer than `minutes`, `minutes` is set to twice the writing time.
        """
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


class ClusterSpec(StrictModel):
    """Resources of a job, and the memory layout of its model."""

    engines: ProcessCount | Auto = "auto"
    """Number of vLLM engines, which sample the rollouts. Each engine has a full copy of the model. More engines make
    the sampling of a step faster. The job starts with the first engine; the others join when resources are free. auto:
    as many as fit on half of the GPUs; 1 on CPUs."""
    learner_ranks: ProcessCount | Auto = "auto"
    """Number of training processes, each with a share of the batch. More ranks make the update faster; with
    `zero_stage`, each rank also needs less memory. auto: one for each GPU without an engine; 1 on CPUs."""
    engine_cores: ProcessCount | Auto = "auto"
    """CPU cores of each engine. An engine without GPUs samples on these cores. An engine with GPUs needs only a few
    cores, for tokenizing and tool calls. auto: for each GPU of the engine, as many cores as its node has per GPU, but
    at most 4. For engines without GPUs and for shared engines, auto is 1 core."""
    rank_cores: ProcessCount | Auto = "auto"
    """CPU cores of each learner rank. The rank uses one thread per core. auto: the cores of a node divided by its GPUs,
    but at most 16 cores; 1 on CPUs."""
    colocated: bool | Auto = "auto"
    """Whether engines and learner ranks share the same GPUs or cores. Sharing needs fewer GPUs or cores, but makes the
    job slower. auto: true if the cluster has one GPU. If an engine and a rank fit into a GPU's memory together, both
    stay in memory. If they do not fit, or if they run on CPUs, they use time-sharing: only one of them works at a time.
    With time-sharing, trained tokens are never stale, even if `max_staleness` allows stale tokens."""
    share_engines: bool = False
    """Share engines with other jobs that train adapters (`algorithm.lora`) of the same model. Each job has its
    own policy versions. The first such job starts the engines; they stop a minute after the last job. All jobs need
    the same `engine_cores`, `engine_gpus`, `dtype`, `context_length` and `max_num_seqs`, and the same LoRA rank after
    rounding up to a power of two."""
    engine_gpus: Annotated[int, Field(ge=0, le=1_024)] | Auto = "auto"
    """GPUs per engine. With more than 1, the model is split over the GPUs; this is for models that are too large for
    one GPU. auto: the smallest number with enough memory for four sequences of `context_length`. If four sequences
    never fit, auto is the smallest number with enough memory for one sequence. If the cluster has no GPUs, auto is 0.
    If engines have GPUs, each learner rank has one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of the weights; auto: bfloat16 on GPUs, float32 on CPUs. bfloat16 is rejected on CPUs."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] | Auto = "auto"
    """DeepSpeed ZeRO stage: selects the state that is partitioned across the learner ranks. 0: no state. 1: the
    optimizer state. 2: optimizer state and gradients. 3: optimizer state, gradients and weights. Raise it if ranks run
    out of memory; higher stages need more communication. In bfloat16, 0 is treated as 1. auto: the lowest stage that
    fits; 0 on CPUs."""
    offload: Offload | Auto = "auto"
    """State that learner ranks move from GPU memory to their node's memory. The setting has no effect on CPUs. none: no
    state. optimizer: the optimizer state, which takes most of the memory of full training; the update is then computed
    on `rank_cores`. optimizer_and_activations: also the activations, for long contexts. Offloading makes a step slower.
    auto: none if GPU memory is sufficient. If `algorithm.lora` is auto, LoRA is tried before offloading."""
    context_length: Annotated[int, Field(ge=1, le=100_000_000)] | Auto = "auto"
    """Maximum conversation length in tokens, with prompt and tool results; auto: the model's maximum, but at most
    16,384. A rollout that reaches it ends and is graded. A shorter context needs less memory."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] | Auto = "auto"
    """Maximum number of sequences that an engine decodes concurrently; other sequences wait. Higher values increase
    throughput if all sequences fit in the cache. auto: 256, or fewer if 256 sequences do not fit when each fills a
    quarter of `context_length`; 64 on CPUs and for shared engines."""
    micro_batch_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | Auto = "auto"
    """Tokens that a learner rank computes at a time; auto: 8,192 or, if that does not fit in memory, the largest
    multiple of 1,024 that fits, but at least `context_length`. A sequence that exceeds this number is computed alone.
    Lower it if a rank runs out of memory; the result is the same up to rounding."""
    weight_transport: Literal["object_store", "broadcast"] = "object_store"
    """Transfer of new weights to engines. The learner first gathers the weights in Ray's object store. object_store:
    each engine copies the weights while it samples, and pauses only to load them. broadcast: all engines pause while
    learner rank 0 sends the weights to them; not tested between GPUs. An adapter (`algorithm.lora`) always uses
    object_store."""
    checkpoint_interval: CheckpointInterval = CheckpointInterval()
    """Interval between the checkpoints for resuming a failed run. Validation checkpoints are saved separately. Like
    all settings of `cluster`, the interval may be changed on resume."""


class JobSpec(StrictModel):
    """Settings of one fine-tuning job."""

    model: str
    """Base model: a folder, or the Hugging Face name of a model that was downloaded with `hf download`. A folder's path
    is relative to the job file or starts with `~`. In the API: a base model of the server (the operator's `aliases`) or
    a tuned model."""
    training_file: str
    """JSONL file of tasks, one JSON object per line; its path is relative to the job file or starts with `~`. In the
    API: the id of an uploaded file."""
    validation_file: str | None = None
    """JSONL file with validation rows; null: no validation. The model is evaluated on these rows before the first step
    and every `eval_interval` steps. A reinforcement job grades rollouts; a supervised job computes the loss. The three
    checkpoints with the best mean reward on this file are kept, as is the last checkpoint."""
    test_file: str | None = None
    """JSONL file that is graded before and after training; null: no test. No decision depends on it."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of sampling and of the order of rows."""
    suffix: Annotated[str, Field(max_length=64)] | None = None
    """Suffix that is added to the name of the run folder; at most 64 characters. In the API, the tuned model's name
    also contains the suffix."""
    method: Method
    """Training method and its settings."""
    model_options: ModelOptions = ModelOptions()
    """Format of the model's conversations: chat template, tool calls and stop tokens."""
    integrations: Integrations = ()
    """Experiment trackers that receive the metrics of each step and evaluation, and the job's hyperparameters. Trackers
    never receive rows, texts or URLs. If a tracker cannot be used, the job warns and continues."""
    cluster: ClusterSpec = ClusterSpec()
    """Resources of the job."""

    @property
    def reinforcement(self) -> Reinforcement:
        if self.method.reinforcement is None:
            raise ValueError("not a reinforcement job")
        return self.method.reinforcement

    @property
    def optimizer_settings(self) -> OptimizerSpec:
        """Optimizer settings of the job's method."""
        return (self.method.reinforcement or self.supervised).algorithm

    def with_adapter(self, lora: LoraSpec | None) -> JobSpec:
        """Return a copy of the job that trains the adapter `lora`; None: all weights are trained."""
        method, section = self.method, self.method.reinforcement or self.supervised
        algorithm = section.algorithm.model_copy(update={"lora": lora})
        changed = method.model_copy(update={method.type: section.model_copy(update={"algorithm": algorithm})})
        return self.model_copy(update={"method": changed})

    @property
    def supervised(self) -> Supervised:
        if self.method.type != "supervised":
            raise ValueError("not a supervised job")
        return self.method.supervised or Supervised()
