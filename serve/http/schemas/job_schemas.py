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
    """Invalid field of the request; null if no field is invalid."""


class JobProgress(ResponseBody):
    """Progress of a job: completed steps, current reward or loss, and the baseline to compare it with."""

    metric: Literal["reward", "loss"]
    """Metric of `train`, `validation` and `baseline`; `loss` for supervised jobs."""
    step: int
    """Number of completed training steps."""
    total_steps: int | None
    """Number of planned training steps; null before the first step."""
    train: float | None
    """Mean of `metric` in the last training step; null if not measured."""
    validation: float | None
    """Mean of `metric` in the last validation; null if there was no validation."""
    baseline: float | None
    """Value of `metric` before training; null if not measured."""
    baseline_of: Literal["train", "validation"] | None
    """Source of `baseline`; null if not measured.

    `validation`: the validation before the first step. `train`: the first training step.
    """


class Job(ListEntry):
    """A fine-tuning job."""

    id: str
    """Id of the job, `ftjob-...`."""
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: UnixTime
    """Creation time in Unix seconds."""
    finished_at: UnixTime | None
    """End time in Unix seconds; null until the job has ended."""
    estimated_finish: UnixTime | None
    """Estimated end time in Unix seconds; null unless the job is running and has completed enough steps."""
    model: str
    """Id of the base model, as in the request."""
    fine_tuned_model: str | None
    """Id of the tuned model, for use as `model` in requests; null until the job has succeeded."""
    organization_id: str = "local"
    """Always `local`, since a server has only one organization."""
    status: JobStatus
    """`validating_files`, `queued`, `running`, `paused`, or finally `succeeded`, `failed` or `cancelled`."""
    error: JobFailure | None
    """Error of a failed job; otherwise null."""
    hyperparameters: dict[str, Any]
    """The hyperparameters of `method`, for older OpenAI clients."""
    method: dict[str, Any]
    """Method from the request, with default hyperparameters added and secrets removed."""
    model_options: dict[str, Any] | None
    """Model options from the request, or null."""
    training_file: str
    """Id of the training file."""
    validation_file: str | None
    """Id of the validation file, or null."""
    test_file: str | None
    """Id of the test file, or null."""
    result_files: list[str]
    """Ids of result files. A successful job has one result file: a CSV file with the metrics of each step."""
    trained_tokens: int | None
    """Number of tokens trained on up to the last checkpoint; null before the first checkpoint."""
    seed: int
    """Seed for row order and sampling; random if the request has no seed."""
    suffix: str | None
    """Part of the tuned model's name."""
    metadata: dict[str, str] | None = Field(validation_alias="labels")
    """Metadata from the request."""
    integrations: Annotated[list[dict[str, Any]], BeforeValidator(lambda trackers: trackers or [])]
    """Trackers from the request that receive the job's metrics."""
    progress: JobProgress | None = None
    """Progress, if the request has `include=progress`; null before the first measurement."""


class JobProblem(ResponseBody):
    """A problem with a job request or with its files, model, tools or graders."""

    code: str
    """Problem code; see [problem codes](problems.md)."""
    field: str
    """Field of the request, such as `method.reinforcement.grader.url`, or field of a row in a file."""
    line: int | None
    """Number of the first line with the problem; null if the problem does not concern a line of a file."""
    rows: str
    """Lines of all rows with the problem, such as `1-7, 9`; empty unless several rows have the problem."""
    message: str
    """Description of the problem."""
    fix: str
    """Fix for the problem."""


class JobCheck(ResponseBody):
    """Result of checking a job request. Not part of OpenAI's API."""

    object: Literal["fine_tuning.job.check"] = "fine_tuning.job.check"
    valid: bool
    """Whether the check found no problems. The check does not call tools or graders."""
    problems: list[JobProblem]
    """Problems with the request. If the request does not match the API's schema, only schema errors are listed."""


class JobEventBody(ListEntry):
    """An event of a job."""

    id: str
    """Id of the event, `ftevent-...`."""
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: UnixTime
    """Time of the event in Unix seconds."""
    level: Literal["info", "warn", "error"]
    """Severity of the event."""
    type: Literal["message", "metrics"]
    """`metrics` if `data` contains the metrics of a step, otherwise `message`."""
    message: str
    """Human-readable message."""
    data: dict[str, Any] | None
    """Metrics of a step, or details of a message; null if there are no details."""


class JobOutput(ResponseBody):
    """Last part of the output of one of a job's processes."""

    process: Literal["validation", "driver"]
    """Kind of process."""
    attempt: int
    """Number of the driver: 1 for the job's first driver, 2 for the second, and so on. 0 for the validation process."""
    written_at: UnixTime = Field(validation_alias="at")
    """Time of the last output in Unix seconds."""
    text: str
    """End of the output, without secrets."""


class JobLog(ResponseBody):
    """A job's error and the outputs of its processes, for admins only. Not part of OpenAI's API."""

    object: Literal["fine_tuning.job.log"] = "fine_tuning.job.log"
    job_id: str
    """Id of the job."""
    error: str | None
    """Full error of the job, with details that the job object omits; null if the job has no error."""
    outputs: list[JobOutput]
    """Outputs, oldest first. They are deleted after 30 days. Only the outputs of the last ten drivers are stored."""


class Checkpoint(ListEntry):
    """A checkpoint of a job."""

    id: str
    """Id of the checkpoint, `ftckpt-...`."""
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: UnixTime
    """Creation time in Unix seconds."""
    fine_tuned_model_checkpoint: str = Field(validation_alias="model")
    """Model id of the checkpoint, for use as `model` in requests."""
    fine_tuning_job_id: str = Field(validation_alias="job_id")
    """Id of the job."""
    step_number: int = Field(validation_alias="step")
    """Training step after which the checkpoint was saved."""
    metrics: dict[str, float]
    """Metrics of the training step, and of the validation after it. `is_best` is 1 for the best checkpoint."""
