"""Response models of a job's records: rollouts, rewards, metrics and settings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from agent_rft.cluster.records.rollout_filter import RecordedFinish
from agent_rft.serve.http.schemas.base import ListEntry, ResponseBody


class JobRollout(ListEntry):
    """A rollout of a job. Not part of OpenAI's API."""

    id: str
    """Id of the rollout: file and number, such as `step-000012.57`."""
    object: Literal["fine_tuning.job.rollout"] = "fine_tuning.job.rollout"
    fine_tuning_job_id: str
    """Id of the job."""
    file: str
    """Rollout file, such as step-000012, validation-000005 or test-after."""
    request: dict[str, Any]
    """The request for the rollout: task with its row, epoch, purpose and temperature."""
    rollout: dict[str, Any]
    """The rollout as in the rollout file. `kind` is `rollout`, or `discarded` if the rollout has no grade. A response
    with a single rollout contains `num_tokens` instead of the tokens."""


class JobRolloutSummary(ListEntry):
    """Summary of a rollout, as listed with `view=summary`. Not part of OpenAI's API."""

    id: str
    """Id of the rollout: file and number, such as `step-000012.57`."""
    object: Literal["fine_tuning.job.rollout.summary"] = "fine_tuning.job.rollout.summary"
    file: str
    """Rollout file, such as step-000012, validation-000005 or test-after."""
    step: int | None
    """Training step of the file; null for tests."""
    trace_id: str
    row_id: str
    """Id of the row: its line number and a digest."""
    sample: int
    """Number of the rollout in its group."""
    grade: float | None
    """Grade. Like all numbers below, it is null if the rollout was discarded."""
    reward: float | None
    finish: RecordedFinish
    """Reason why the rollout ended, or `discarded`."""
    tools: list[str]
    """Names of the tools that the rollout called."""
    errors: list[str]
    """Kinds of errors in the rollout's calls, or the reason why it was discarded."""
    num_calls: int | None
    num_sampled: int | None
    """Number of sampled tokens."""
    wall_s: float | None
    """Duration of the rollout in seconds."""
    answer: str
    """Beginning of the answer."""


class RolloutToken(ResponseBody):
    """A token of a rollout's segment."""

    id: int
    text: str | None
    """Text of the token; null if the server does not have the model's tokenizer."""
    logprob: float | None
    """Log-probability from the engine; null if the token was not sampled."""
    version: int | None
    """Policy version that sampled the token; null if the token was not sampled."""


class RolloutTokens(ResponseBody):
    """Tokens of a rollout's segment, as the engine processed them. Not part of OpenAI's API."""

    object: Literal["fine_tuning.job.rollout.tokens"] = "fine_tuning.job.rollout.tokens"
    rollout_id: str
    segment: int
    start: int
    """Index of `tokens[0]` in the segment."""
    num_tokens: int
    """Number of tokens in the segment, including its prompt."""
    tokens: list[RolloutToken]


class JobRowRewards(ListEntry):
    """Reward distribution of a row. Not part of OpenAI's API."""

    id: str = Field(validation_alias="row_id")
    """Id of the row: its line number and a digest."""
    object: Literal["fine_tuning.job.row_rewards"] = "fine_tuning.job.row_rewards"
    num_rollouts: int
    """Number of rollouts with a reward."""
    num_discarded: int = Field(validation_alias="num_lost")
    """Number of discarded rollouts."""
    mean: float | None
    """Mean reward. `mean`, `min` and `max` are null if all rollouts were discarded."""
    min: float | None = Field(validation_alias="low")
    max: float | None = Field(validation_alias="high")
    bins: list[int]
    """Histogram: number of rollouts in each tenth of `range`."""
    range: tuple[float, float]
    """Minimum and maximum reward of all rows that match the filters."""


class IndexedFile(ResponseBody):
    """A file that contains rollouts of a job."""

    name: str
    """Name of the file, such as step-000012, validation-000005 or test-after."""
    step: int | None
    num_rollouts: int


class RolloutFilters(ResponseBody):
    """Values for filtering a job's rollouts. Not part of OpenAI's API."""

    object: Literal["fine_tuning.job.rollout_filters"] = "fine_tuning.job.rollout_filters"
    files: list[IndexedFile]
    """Rollout files, oldest first."""
    tools: list[str]
    """Tools that rollouts called."""
    errors: list[str]
    """Errors of calls and reasons for discards."""


class JobMetrics(ListEntry):
    """Metrics of a training step. Not part of OpenAI's API."""

    id: str
    """Id of the step, `step-...`."""
    object: Literal["fine_tuning.job.metrics"] = "fine_tuning.job.metrics"
    fine_tuning_job_id: str
    """Id of the job."""
    step_number: int
    """Training step."""
    metrics: dict[str, float]
    """Metrics by name, as described in the manual. Metrics that were not measured are omitted."""


class JobSettings(ResponseBody):
    """Settings and plan of a job. Not part of OpenAI's API."""

    object: Literal["fine_tuning.job.settings"] = "fine_tuning.job.settings"
    fine_tuning_job_id: str
    """Id of the job."""
    job: dict[str, Any] | None = None
    """The job with all defaults and without secrets; null before the job starts."""
    plan: dict[str, Any] | None = None
    """Values derived from the job and its files, such as the number of steps; null before the job starts."""
