"""Response models of jobs, job checks, events, logs and checkpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from agent_rft.serve.http.schemas.base import ListEntry, ResponseBody, UnixTime
from agent_rft.serve.stores.job_states import JobStatus


class JobFailure(ResponseBody):
    """Error of a failed job."""

    code: str
    """Problem code from the manual, such as invalid_training_file."""
    message: str
    """Problem, location and fix."""
    param: str | None
    """Field of the request with the problem; null if no field is wrong."""


class JobProgress(ResponseBody):
    """Progress of a job: completed steps, current reward or loss, and the baseline to compare it with."""

    metric: Literal["reward", "loss"]
    """Metric of `train`, `validation` and `baseline`; `loss` for supervised jobs."""
    step: int
    """Number of completed training steps."""
    total_steps: int | None
    """Number of planned training steps; null before the first step."""
    train: float | None
    """Mean in the last step; null if not measured."""
    validation: float | None
    """Mean in the last validation; null if there was no validation."""
    baseline: float | None
    """Value to compare with; see `baseline_of`."""
    baseline_of: Literal["train", "validation"] | None
    """Source of `baseline`: the validation before the first step, or the first step's rollouts; null before them."""


class Job(ListEntry):
    """A fine-tuning job."""

    id: str
    """Id of the job, `ftjob-...`."""
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: UnixTime
    """Unix time of the creation, in seconds."""
    finished_at: UnixTime | None
    """Unix time in seconds at which the job succeeded, failed or was cancelled; null if it has not ended."""
    estimated_finish: UnixTime | None
    """Estimated end as Unix time in seconds; null unless the job is running and has completed enough steps."""
    model: str
    """Id of the base model, as in the request."""
    fine_tuned_model: str | None
    """Id of the tuned model for chat and responses requests; null until the job has succeeded."""
    organization_id: str = "local"
    """Always `local`, since a server has only one organization."""
    status: JobStatus
    """`validating_files`, `queued`, `running`, `paused`, or finally `succeeded`, `failed` or `cancelled`."""
    error: JobFailure | None
    """Error of a failed job; otherwise null."""
    hyperparameters: dict[str, Any]
    """The hyperparameters of `method`, for clients of older versions of OpenAI's API."""
    method: dict[str, Any]
    """Method of the request, with defaults for all missing hyperparameters and without secrets."""
    model_options: dict[str, Any] | None
    """Model options of the request, or null."""
    training_file: str
    """Id of the training file."""
    validation_file: str | None
    """Id of the validation file, or null."""
    test_file: str | None
    """Id of the test file, or null."""
    result_files: list[str]
    """Ids of the result files: a CSV file with the metrics of each step."""
    trained_tokens: int | None
    """Number of trained tokens so far; null before the first step."""
    seed: int
    """Seed of the row order and of sampling: from the request, or else chosen randomly."""
    suffix: str | None
    """Part of the tuned model's name."""
    metadata: dict[str, str] | None = Field(validation_alias="labels")
    """Metadata of the request."""
    integrations: Annotated[list[dict[str, Any]], BeforeValidator(lambda trackers: trackers or [])]
    """Trackers of the request."""
    progress: JobProgress | None = None
    """Progress, if the request has `include=progress`; null before the first measurement."""


class JobProblem(ResponseBody):
    """A problem with a job request or with its files, model, tools or graders."""

    code: str
    """Problem code; see [problem codes](problems.md)."""
    field: str
    """Field of the request, such as `method.reinforcement.grader.url`, or field of a row in a file."""
    line: int | None
    """First line with the problem in the file; null if the problem is not in a line of a file."""
    rows: str
    """All lines with the same problem, such as `1-7, 9`; empty unless several rows have it."""
    message: str
    """Description of the problem."""
    fix: str
    """Fix for the problem."""


class JobCheck(ResponseBody):
    """Result of checking a job request. Not part of OpenAI's API."""

    object: Literal["fine_tuning.job.check"] = "fine_tuning.job.check"
    valid: bool
    """Whether the check found no problems. The check does not call tools and graders; a created job does so first."""
    problems: list[JobProblem]
    """All schema problems of the request or, if its schema is valid, of its files, model, tools and graders."""


class JobEventBody(ListEntry):
    """An event of a job."""

    id: str
    """Id of the event, `ftevent-...`."""
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: UnixTime
    """Unix time of the event, in seconds."""
    level: Literal["info", "warn", "error"]
    """Severity of the event."""
    type: Literal["message", "metrics"]
    """`metrics` if `data` contains the metrics of a step, otherwise `message`."""
    message: str
    """Human-readable message."""
    data: dict[str, Any] | None
    """Metrics of a step, or details of a message; null if there are no details."""


class JobOutput(ResponseBody):
    """Last part of the output of a process that belongs to a job."""

    process: Literal["validation", "driver"]
    """Kind of process."""
    attempt: int
    """Number of the driver, from 1; 0 for the validation."""
    written_at: UnixTime = Field(validation_alias="at")
    """Unix time of the last output, in seconds."""
    text: str
    """End of the output, without secrets."""


class JobLog(ResponseBody):
    """Error and process outputs of a job, for admins only. Not part of OpenAI's API."""

    object: Literal["fine_tuning.job.log"] = "fine_tuning.job.log"
    job_id: str
    """Id of the job."""
    error: str | None
    """Full error of the job, with details that the job object omits; null if the job has no error."""
    outputs: list[JobOutput]
    """Outputs of the processes, oldest first. They are kept for 30 days, and only for the last ten drivers."""


class Checkpoint(ListEntry):
    """A checkpoint of a job."""

    id: str
    """Id of the checkpoint, `ftckpt-...`."""
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: UnixTime
    """Unix time of the creation, in seconds."""
    fine_tuned_model_checkpoint: str = Field(validation_alias="model")
    """Model id of the checkpoint for chat and responses requests."""
    fine_tuning_job_id: str = Field(validation_alias="job_id")
    """Id of the job."""
    step_number: int = Field(validation_alias="step")
    """Training step after which the checkpoint was saved."""
    metrics: dict[str, float]
    """Metrics of this step and of the validation after it."""
