"""The data of the system: frozen, slotted, without behaviour beyond derived values.

Token-level arrays of one rollout all have shape [T], T = number of tokens from the first prompt token to the last one
sampled. Nothing here is ever changed after it was made; a new state is a new object.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Message = dict[str, Any]
ToolSchema = dict[str, Any]
Purpose = Literal["train", "validation", "test"]
Finish = Literal["answer", "max_steps", "max_tokens", "context"]


@dataclass(frozen=True, slots=True)
class Task:
    """One row of a dataset. `item` is the whole row, as graders and tools get it."""

    row_id: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    item: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as the model made it; `arguments` is the JSON text of section 4 of the wire contract."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model sees of a call. `error` is None, a mistake of the model's (malformed_call, unknown_tool,
    invalid_arguments, over_budget) or tool_error, a 4xx that the tool answered; `latency_s` is that of the attempt that
    answered, without queues and retries; `truncated` says that `output` was cut.
    """

    call_id: str
    output: str
    error: str | None = None
    latency_s: float = 0.0
    retries: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One completion and the calls it made. `start:stop` are its sampled tokens within the rollout's arrays."""

    start: int
    stop: int
    text: str
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    model_s: float = 0.0

    @property
    def busy_s(self) -> float:
        return self.model_s + max((result.latency_s for result in self.results), default=0.0)


@dataclass(frozen=True, slots=True)
class Grade:
    """A grader's finite number, before any penalty. `scores` are those of the parts of a multi grader.

    Where a guard tripped, `guard` is its name, `value` what it sets the reward to, and `reason` says why; else `reason`
    is what a judge concluded, if any. Where there are guards, `scores["ungated"]` is the grade without them. `held_out`
    is the grade of the held-out grader, None where there is none or it failed (`held_out_error` says why).
    `judge_tokens` counts the tokens spent on judges, by model.
    """

    value: float
    scores: dict[str, float] = field(default_factory=dict)
    latency_s: float = 0.0
    guard: str | None = None
    reason: str = ""
    held_out: float | None = None
    held_out_error: str = ""
    judge_tokens: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One graded trajectory, tied together by `trace_id`.

    token_ids [T] int32: prompt, sampled and environment tokens, in the order in which the engine saw them.
    loss_mask [T] bool: True where the engine sampled the token; exactly these are trained.
    logprobs [T] float32: the engine's log-probability at the sampling temperature; 0 where masked.
    versions [T] int32: the policy version that sampled the token; -1 where masked.
    """

    trace_id: str
    row_id: str
    epoch: int
    sample: int
    attempt: int
    token_ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    turns: tuple[Turn, ...]
    answer: str
    finish: Finish
    grade: Grade
    reward: float
    reasoning_tokens: int = 0
    wall_s: float = 0.0

    @property
    def num_sampled(self) -> int:
        return int(self.loss_mask.sum())

    @property
    def calls(self) -> list[ToolCall]:
        return [call for turn in self.turns for call in turn.calls]

    @property
    def results(self) -> list[ToolResult]:
        return [result for turn in self.turns for result in turn.results]

    @property
    def oldest_version(self) -> int:
        return int(self.versions[self.loss_mask].min())

    @property
    def busy_s(self) -> float:
        """Model and tool time, without queues, retries and pauses; the calls of one turn run side by side."""
        return sum(t.busy_s for t in self.turns)


@dataclass(frozen=True, slots=True)
class Discarded:
    """A rollout that ended without a grade, and why (`Discard.reason` and its message). `endpoint` is the one that
    failed, if one did.
    """

    trace_id: str
    row_id: str
    sample: int
    reason: str
    message: str
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """`size` rollouts of one task. `index` counts admissions; batches form in its order."""

    task: Task
    epoch: int
    index: int
    size: int
    purpose: Purpose
    temperature: float
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one request that were graded, and every attempt that was not. `wall_s`: from first to last."""

    request: GroupRequest
    rollouts: tuple[Rollout, ...]
    discarded: tuple[Discarded, ...] = ()
    wall_s: float = 0.0

    @property
    def rewards(self) -> NDArray[np.float64]:
        return np.array([rollout.reward for rollout in self.rollouts], dtype=np.float64)

    @property
    def oldest_version(self) -> int:
        return min(rollout.oldest_version for rollout in self.rollouts)


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """What the learner needs of one rollout: arrays [T] as in Rollout, and one advantage for all its tokens."""

    token_ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    advantage: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a learner's step did. `metrics` go by the names of `trainer.metrics`; `applied` is False where a
    non-finite gradient skipped the update.
    """

    metrics: dict[str, float]
    applied: bool


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What publishing one version cost: pause of generation per engine (the longest), bytes and whole duration."""

    version: int
    pause_s: float
    total_s: float
    num_bytes: int
    fenced: tuple[str, ...] = ()
    canary_gap: float = 0.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the rollouts of a whole file came to. Rollouts that were never graded are in `discarded`, not in any mean.

    `ci95` is the half width of the 95 % confidence interval of `grade` over rows (samples of one row are not
    independent); NaN for a single row. `reasoning_tokens` is NaN in files of older runs.
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

    def as_dict(self) -> dict[str, float]:
        return asdict(self)
