"""Jobs, their check, events, logs and checkpoints."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from agent_rft.serve.http.schemas.base import ListEntry, ResponseBody, UnixTime
from agent_rft.serve.stores.job_states import JobStatus


class JobFailure(ResponseBody):
    code: str
    """A problem code of the manual, such as invalid_training_file."""
    message: str
    """What went wrong, where, and what to do."""
    param: str | None
    """The field of the request that is wrong, if it is one."""


class JobProgress(ResponseBody):
    """How far a job is, and how well it does now against before."""

    metric: Literal["reward", "loss"]
    """What its numbers are: a supervised job has a loss."""
    step: int
    """Training steps done."""
    total_steps: int | None
    """Training steps planned; null before the first one."""
    train: float | None
    """Mean of the last step; null: not measured."""
    validation: float | None
    """Mean of the last validation; null: there was none."""
    baseline: float | None
    """What training is compared with: see `baseline_of`."""
    baseline_of: Literal["train", "validation"] | None
    """validation: the file before the first step; train: the first step's rollouts; null: there is no baseline yet."""


class Job(ListEntry):
    """A fine-tuning job."""

    id: str
    """`ftjob-...`."""
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: UnixTime
    """Unix time in seconds."""
    finished_at: UnixTime | None
    """Unix time in seconds at which the job succeeded, failed or was cancelled; null before."""
    estimated_finish: UnixTime | None
    """Unix time in seconds; null unless the job is running and has done enough steps for an estimate."""
    model: str
    """Id of the start model, as in the request."""
    fine_tuned_model: str | None
    """Id of the tuned model, for chat and responses; null until the job has succeeded."""
    organization_id: str = "local"
    """`local`: a server has one organization."""
    status: JobStatus
    """`validating_files`, then `queued`, `running`, and at last `succeeded`, `failed` or `cancelled`; or `paused`."""
    error: JobFailure | None
    """Why the job failed; null otherwise."""
    hyperparameters: dict[str, Any]
    """The same as in `method`; clients of older versions of OpenAI's API read them here."""
    method: dict[str, Any]
    """The request's, with all hyperparameters filled in and without secrets."""
    model_options: dict[str, Any] | None
    """Those of the request, or null."""
    training_file: str
    """Id of the training file."""
    validation_file: str | None
    """Id of the validation file, or null."""
    test_file: str | None
    """Id of the test file, or null."""
    result_files: list[str]
    """Ids of a CSV file with the metrics of each step."""
    trained_tokens: int | None
    """Tokens that were trained so far; null before the first step."""
    seed: int
    """Seed of the order of rows and of sampling: the request's, or a random one."""
    suffix: str | None
    """Part of the tuned model's name."""
    metadata: dict[str, str] | None = Field(validation_alias="labels")
    """The pairs of the request."""
    integrations: Annotated[list[dict[str, Any]], BeforeValidator(lambda trackers: trackers or [])]
    """The trackers of the request."""
    progress: JobProgress | None = None
    """If the request says `include=progress`; null before the job has measured anything."""


class JobProblem(ResponseBody):
    """A mistake in a request for a job, its files, its model, its tools or graders."""

    code: str
    """See [problem codes](problems.md)."""
    field: str
    """The field of the request, such as `method.reinforcement.grader.url`, or of a row of a file."""
    line: int | None
    """The line of the file, or the first of several; null: of no line."""
    rows: str
    """All lines of a mistake that several rows share, such as `1-7, 9`; else empty."""
    message: str
    """What is wrong."""
    remedy: str
    """What to do."""


class JobCheck(ResponseBody):
    """What is wrong with a request for a job: an extension of OpenAI's API."""

    object: Literal["fine_tuning.job.check"] = "fine_tuning.job.check"
    valid: bool
    """Whether nothing was found. The created job's tools and grader are called before it runs; here they are not."""
    problems: list[JobProblem]
    """All mistakes: of the form, or if it is right, of the files, model, tools and graders."""


class JobEventBody(ListEntry):
    """What happened in a job."""

    id: str
    """`ftevent-...`."""
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: UnixTime
    """Unix time in seconds."""
    level: Literal["info", "warn", "error"]
    """How serious it is."""
    type: Literal["message", "metrics"]
    """metrics: the numbers of one step, in `data`; message: anything else."""
    message: str
    """A sentence for people."""
    data: dict[str, Any] | None
    """The metrics of a step, or details of a message; null: none."""


class JobOutput(ResponseBody):
    """The end of what one process of a job wrote."""

    process: Literal["validation", "driver"]
    """Which process it was."""
    attempt: int
    """The number of the driver, from 1; 0 for the validation."""
    written_at: UnixTime = Field(validation_alias="at")
    """When it last wrote, as Unix time in seconds."""
    text: str
    """The end of its output, without secrets."""


class JobLog(ResponseBody):
    """What only admins see of a job: an extension of OpenAI's API."""

    object: Literal["fine_tuning.job.log"] = "fine_tuning.job.log"
    job_id: str
    """Id of the job."""
    error: str | None
    """The error of the job with what it quotes, which the job itself does not show; null: it has none."""
    outputs: list[JobOutput]
    """Its processes, oldest first. Outputs are kept for 30 days, those of the last ten drivers."""


class Checkpoint(ListEntry):
    """A saved state of a job's model."""

    id: str
    """`ftckpt-...`."""
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: UnixTime
    """Unix time in seconds."""
    fine_tuned_model_checkpoint: str = Field(validation_alias="model")
    """Id under which the checkpoint is served as a model."""
    fine_tuning_job_id: str = Field(validation_alias="job_id")
    """Id of its job."""
    step_number: int = Field(validation_alias="step")
    """The training step after which it was saved."""
    metrics: dict[str, float]
    """Metrics of that step and of the validation after it."""
