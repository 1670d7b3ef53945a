"""Data types that all packages share: frozen dataclasses with slots.

All token-level arrays of a segment have shape [T], where T is the number of tokens from the first prompt token to the
last sampled token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agent_rft.metrics.confidence_intervals import Interval
from agent_rft.metrics.missing_rollouts import format_missing

Message = dict[str, Any]
ToolSchema = dict[str, Any]
Purpose = Literal["train", "validation", "test"]
Finish = Literal["answer", "max_steps", "max_tokens", "context", "timeout"]


@dataclass(frozen=True, slots=True)
class Task:
    """One row of a dataset. `item` is the complete row, as graders and tools receive it."""

    row_id: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    item: dict[str, Any]

    @property
    def line(self) -> int:
        """Line number of the row in its file, taken from the beginning of `row_id`; 0 if the id contains none.

        See `agent_rft.rows.dataset_rows`.
        """
        number = self.row_id.partition("-")[0]
        return int(number) if number.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the model wrote it. `arguments` is JSON text that has not been parsed and may be invalid."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call, as the model sees it.

    Attributes:
        error: Kind of error, or None. `malformed_call`, `unknown_tool`, `invalid_arguments` and `over_budget` are
            errors of the model. `tool_error` is a response of the tool with a status from 400 to 499, an error in MCP's
            format, or an output that the model cannot read.
        latency_s: Latency of the last attempt, without queueing and retries.
        truncated: Whether `output` was cut because it was too long.
    """

    call_id: str
    output: str
    error: str | None = None
    latency_s: float = 0.0
    retries: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One completion of the model, with its tool calls and their results.

    `start:stop` is the range of the completion's sampled tokens in the arrays of a segment; `segment` is the index of
    this segment in the rollout.
    """

    start: int
    stop: int
    text: str
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    model_s: float = 0.0
    segment: int = 0

    @property
    def busy_s(self) -> float:
        return self.model_s + max((result.latency_s for result in self.results), default=0.0)


@dataclass(frozen=True, slots=True)
class Grade:
    """The grade of one rollout: a finite number, before any penalty.

    Attributes:
        value: The grade or, if a guard was triggered, the reward that the guard sets instead.
        scores: The scores of a multi grader's parts, or the scores in an endpoint's answer. If the job has guards,
            `scores["ungated"]` is the grade without guards.
        guard: Name of the guard that was triggered, or None.
        reason: Reason why the guard was triggered; without a guard, the explanation of the judge or endpoint, if
            any.
        held_out: Grade of the held-out grader; None if there is no such grader or it failed.
        held_out_error: Error of the held-out grader; empty if it did not fail.
        judge_tokens: Tokens spent on judge models, by model.
        train: Whether the rollout may be trained on. A grader can answer `train: false`: the grade then counts in mean
            grades, but the rollout is left out of its group's statistics and of the batch.
    """

    value: float
    scores: dict[str, float] = field(default_factory=dict)
    latency_s: float = 0.0
    guard: str | None = None
    reason: str = ""
    held_out: float | None = None
    held_out_error: str = ""
    judge_tokens: dict[str, int] = field(default_factory=dict)
    train: bool = True


@dataclass(frozen=True, slots=True)
class Segment:
    """One training sequence of a rollout: a prompt as the engine saw it, and all tokens after the prompt.

    Tokens that were sampled in earlier segments belong to the prompt of this segment and are masked out, so no token is
    trained on twice.

    Attributes:
        token_ids: [T] int32, prompt, sampled and environment tokens in the order in which the engine saw them.
        loss_mask: [T] bool, True for tokens that the engine sampled in this segment; only these are trained on.
        logprobs: [T] float32, log-probability under the engine at the sampling temperature; 0 where masked out.
        versions: [T] int32, the policy version that sampled the token; -1 where masked out.
        experts: [T, L, k], indices of the k experts that each of the engine's L layers chose for the token, 0 in layers
            without experts; None if the engine did not report experts. The engine does not compute the last tokens of a
            segment; these tokens get the experts of the last computed token.
    """

    token_ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    experts: NDArray[np.integer[Any]] | None = None

    @property
    def num_prompt(self) -> int:
        """Number of tokens before the first sampled token."""
        return int(self.loss_mask.argmax())


@dataclass(frozen=True, slots=True)
class Rollout:
    """One graded trajectory. `trace_id` identifies it in every request to tools and graders.

    Attributes:
        segments: Training sequences of the rollout, in order. A new segment begins whenever the chat template rewrites
            tokens that the engine has already seen.
        structure: vLLM's structural tag that constrained the decoding of each turn; None without a response format.
    """

    trace_id: str
    row_id: str
    epoch: int
    sample: int
    attempt: int
    segments: tuple[Segment, ...]
    turns: tuple[Turn, ...]
    answer: str
    finish: Finish
    grade: Grade
    reward: float
    reasoning_tokens: int = 0
    wall_s: float = 0.0
    structure: str | None = None

    @property
    def num_sampled(self) -> int:
        return sum(int(segment.loss_mask.sum()) for segment in self.segments)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all segments, including their prompts."""
        return sum(len(segment.token_ids) for segment in self.segments)

    @property
    def num_prompt(self) -> int:
        """Number of prompt tokens of all segments."""
        return sum(segment.num_prompt for segment in self.segments)

    @property
    def calls(self) -> list[ToolCall]:
        return [call for turn in self.turns for call in turn.calls]

    def drop_experts(self) -> Rollout:
        """Return a copy without the segments' `experts`, which only training needs."""
        return replace(self, segments=tuple(replace(segment, experts=None) for segment in self.segments))

    @property
    def results(self) -> list[ToolResult]:
        return [result for turn in self.turns for result in turn.results]

    @property
    def sampled_versions(self) -> NDArray[np.int32]:
        """Policy version of each sampled token: [num_sampled] int32."""
        return np.concatenate([segment.versions[segment.loss_mask] for segment in self.segments])

    @property
    def oldest_version(self) -> int:
        return int(self.sampled_versions.min())

    @property
    def newest_version(self) -> int:
        return int(self.sampled_versions.max())

    @property
    def busy_s(self) -> float:
        """Model and tool time in seconds, without queueing, retries and pauses.

        The calls of a turn run concurrently, so only the slowest call of each turn counts.
        """
        return sum(t.busy_s for t in self.turns)

    def to_train_segments(self, advantage: float) -> list[TrainSegment]:
        """Return the training sequences of the rollout: its segments in order, each with the rollout's advantage."""
        return [
            TrainSegment(s.token_ids, s.loss_mask, s.logprobs, s.versions, advantage, self.structure, number, s.experts)
            for number, s in enumerate(self.segments)
        ]


@dataclass(frozen=True, slots=True)
class DiscardedRollout:
    """A rollout that ended without a grade.

    `reason` and `message` come from the `DiscardError`. `endpoint` is the endpoint that failed; empty if no endpoint
    failed.
    """

    trace_id: str
    row_id: str
    sample: int
    reason: str
    message: str
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A request for `size` rollouts of one task.

    Attributes:
        index: Number of the request in the order of admission. Batches contain the groups in the same order.
        samples: Indexes of the requested rollouts; empty if all rollouts of the task are requested.
    """

    task: Task
    epoch: int
    index: int
    size: int
    purpose: Purpose
    temperature: float
    attempt: int = 0
    samples: tuple[int, ...] = ()

    @property
    def sample_indexes(self) -> Sequence[int]:
        return self.samples or range(self.size)


@dataclass(frozen=True, slots=True)
class Group:
    """The graded rollouts of one request, and all discarded attempts. `wall_s` is the duration in seconds."""

    request: GroupRequest
    rollouts: tuple[Rollout, ...]
    discarded: tuple[DiscardedRollout, ...] = ()
    wall_s: float = 0.0

    @property
    def trainable(self) -> tuple[Rollout, ...]:
        """Graded rollouts that may be trained on; see `Grade.train`."""
        return tuple(rollout for rollout in self.rollouts if rollout.grade.train)

    @property
    def rewards(self) -> NDArray[np.float64]:
        """Rewards of the trainable rollouts: [n] float64."""
        return np.array([rollout.reward for rollout in self.trainable], dtype=np.float64)

    @property
    def missing_samples(self) -> tuple[int, ...]:
        """Indexes of the requested rollouts that have no grade."""
        graded = {rollout.sample for rollout in self.rollouts}
        return tuple(sample for sample in self.request.sample_indexes if sample not in graded)

    @property
    def oldest_version(self) -> int:
        """Oldest policy version that sampled a token of the trainable rollouts."""
        return min(rollout.oldest_version for rollout in self.trainable)

    @property
    def newest_version(self) -> int:
        """Newest policy version that sampled a token of these rollouts; -1 if no rollout was graded."""
        return max((rollout.newest_version for rollout in self.rollouts), default=-1)


@dataclass(frozen=True, slots=True)
class TrainSegment:
    """One training sequence for the learner: the arrays of a `Segment`, and the rollout's advantage for all its tokens.

    `segment` is the index of the segment in its rollout; the segments of a rollout are adjacent in a batch. `experts`
    [T, L, k] are the experts that each of L layers chose for each token, 0 in layers without experts; None if unknown.
    """

    token_ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    advantage: float
    structure: str | None = None
    segment: int = 0
    experts: NDArray[np.integer[Any]] | None = None


@dataclass(frozen=True, slots=True)
class LearnerLayout:
    """Distribution of the learner's state across its ranks."""

    ranks: int
    zero_stage: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.ranks} rank{'s' * (self.ranks > 1)}, ZeRO stage {self.zero_stage}, {self.dtype}"


@dataclass(frozen=True, slots=True)
class LayoutConversion:
    """Conversion of a loaded checkpoint from its layout, `previous`, to the current learner's layout, `current`."""

    previous: LearnerLayout
    current: LearnerLayout

    def __str__(self) -> str:
        return f"{self.previous} -> {self.current}"


@dataclass(frozen=True, slots=True)
class StepReport:
    """The result of one learner step.

    `metrics` are keyed by the metric names in `agent_rft.metrics`. `applied` is False if an update was skipped because
    its gradient was not finite.
    """

    metrics: dict[str, float]
    applied: bool


@dataclass(frozen=True, slots=True)
class SyncReport:
    """The result of publishing one policy version to all engines.

    `pause_s` is the longest time for which an engine paused generation. `fenced` are the names of engines that failed
    or differed from the learner, and are therefore replaced.
    """

    version: int
    pause_s: float
    total_s: float
    num_bytes: int
    fenced: tuple[str, ...] = ()
    canary_gap: float = 0.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of grading the rows of a file. Rollouts without a grade are not included in any mean.

    Attributes:
        discarded: Number of attempts that ended without a grade, including attempts that were retried successfully.
        ci95: Half the width of the 95 % confidence interval of `grade`.
        graded_rows: Number of rows with at least one graded rollout.
        held_out: Mean grade of the held-out grader; NaN without a held-out grader.
        intervals: 95 % confidence intervals (low, high) of `grade`, `pass_rate`, `pass_at_k` and, if available,
            `held_out`. They are computed from one mean per row, because the rollouts of a row are not independent.
            Empty if no rollout was graded.
        missing_bounds: Bounds (low, high) of `grade`, `reward` and `pass_rate`. low is the mean if every missing
            rollout had the lowest possible grade, and high is the mean if every missing rollout had the highest
            possible grade. Empty if no rollout is missing, and in evaluations that agent-rft 0.2.0 recorded.
    """

    num_rows: int
    num_rollouts: int
    discarded: int
    grade: float
    ci95: float
    reward: float
    pass_rate: float
    pass_at_k: float
    samples: int
    tool_calls: float
    turns: float
    parallel_turn_share: float
    completion_tokens: float
    rollout_tokens: float
    busy_s: float
    reasoning_tokens: float = math.nan
    graded_rows: int = 0
    held_out: float = math.nan
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    missing_bounds: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def num_missing(self) -> int:
        """Number of rollouts without a grade, after all retries."""
        return max(0, self.num_rows * self.samples - self.num_rollouts)

    @property
    def missing_note(self) -> str:
        """Sentence about the rollouts without a grade; see `format_missing`."""
        return format_missing(self.num_missing, self.num_rows * self.samples, self.missing_bounds.get("grade"))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def get_interval(self, name: str) -> Interval | None:
        """Return the confidence interval of the field `name`, or None if this field has no interval."""
        bounds = self.intervals.get(name)
        return None if bounds is None else Interval(float(getattr(self, name)), *bounds, self.graded_rows)
