"""What a job left in its run folder: rollouts, rewards, metrics, settings."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from agent_rft.cluster.records.wanted import Ended
from agent_rft.serve.http.schemas.base import ListEntry, ResponseBody


class JobRollout(ListEntry):
    """One rollout of a job: an extension of OpenAI's API."""

    id: str
    """Its place in the files of the run, such as `step-000012.57`, for `after`."""
    object: Literal["fine_tuning.job.rollout"] = "fine_tuning.job.rollout"
    fine_tuning_job_id: str
    """Id of its job."""
    file: str
    """The rollout file that it is in, such as step-000012, validation-000005 or test-after."""
    request: dict[str, Any]
    """What was asked for: the task with its row, epoch, purpose, temperature."""
    rollout: dict[str, Any]
    """As in the rollout file. `kind` is `rollout`: turns with calls and results, answer, grade, reward, tokens; or
    `discarded`: the reason. A rollout on its own has `num_tokens` of its segments; `.../tokens` has their tokens."""


class JobRolloutSummary(ListEntry):
    """A rollout in a list with `view=summary`: an extension of OpenAI's API."""

    id: str
    """Its place in the files of the run, such as `step-000012.57`, for `after` and for its own route."""
    object: Literal["fine_tuning.job.rollout.summary"] = "fine_tuning.job.rollout.summary"
    file: str
    """The rollout file that it is in, such as step-000012, validation-000005 or test-after."""
    step: int | None
    """The step of its file; null for tests."""
    trace_id: str
    row_id: str
    """The row: its line and a digest of it."""
    sample: int
    """Its number in its group."""
    grade: float | None
    """null if it was discarded, as all that follows."""
    reward: float | None
    finish: Ended
    """How it ended."""
    tools: list[str]
    """Tools that it called, each once."""
    errors: list[str]
    """Errors of its calls, each once, or the reason why it was discarded."""
    num_calls: int | None
    num_sampled: int | None
    """Tokens that the model sampled."""
    wall_s: float | None
    """Seconds from its start to its end."""
    answer: str
    """The beginning of its answer."""


class RolloutToken(ResponseBody):
    id: int
    text: str | None
    """What it adds to the text; null if the server has no tokenizer of the model."""
    logprob: float | None
    """Log-probability under the engine; null if it was not sampled."""
    version: int | None
    """The policy version that sampled it; null if it was not sampled."""


class RolloutTokens(ResponseBody):
    """Tokens of a segment of a rollout, as the engine saw them: an extension of OpenAI's API."""

    object: Literal["fine_tuning.job.rollout.tokens"] = "fine_tuning.job.rollout.tokens"
    rollout_id: str
    segment: int
    start: int
    """Number of the first of `tokens` in the segment."""
    num_tokens: int
    """All tokens of the segment, with its prompt."""
    tokens: list[RolloutToken]


class JobRowRewards(ListEntry):
    """How the rewards of a row's rollouts are distributed: an extension of OpenAI's API."""

    id: str = Field(validation_alias="row_id")
    """The row: its line and a digest of it."""
    object: Literal["fine_tuning.job.row_rewards"] = "fine_tuning.job.row_rewards"
    num_rollouts: int
    """Those with a reward."""
    num_discarded: int = Field(validation_alias="num_lost")
    """Those without."""
    mean: float | None
    """Mean, least and greatest reward; null if all rollouts were discarded."""
    min: float | None = Field(validation_alias="low")
    max: float | None = Field(validation_alias="high")
    bins: list[int]
    """Rollouts in each tenth of `range`."""
    range: tuple[float, float]
    """The least and the greatest reward of all rows of the list."""


class IndexedFile(ResponseBody):
    name: str
    """Such as step-000012, validation-000005 or test-after."""
    step: int | None
    num_rollouts: int


class RolloutFilters(ResponseBody):
    """What the rollouts of a job can be filtered by: an extension of OpenAI's API."""

    object: Literal["fine_tuning.job.rollout_filters"] = "fine_tuning.job.rollout_filters"
    files: list[IndexedFile]
    """The rollout files, oldest first."""
    tools: list[str]
    """Tools that were called."""
    errors: list[str]
    """Errors of calls, and reasons why rollouts were discarded."""


class JobMetrics(ListEntry):
    """The metrics of one step: an extension of OpenAI's API."""

    id: str
    """`step-...`, for `after`."""
    object: Literal["fine_tuning.job.metrics"] = "fine_tuning.job.metrics"
    fine_tuning_job_id: str
    """Id of its job."""
    step_number: int
    """The training step."""
    metrics: dict[str, float]
    """The metrics by name, see the manual; those that were not measured are left out."""


class JobSettings(ResponseBody):
    """What a job runs with: an extension of OpenAI's API."""

    object: Literal["fine_tuning.job.settings"] = "fine_tuning.job.settings"
    fine_tuning_job_id: str
    """Id of the job."""
    job: dict[str, Any] | None = None
    """The job with all defaults filled in, without secrets; null before it has begun."""
    plan: dict[str, Any] | None = None
    """What was derived from it and its files, such as the number of steps; null before it has begun."""
