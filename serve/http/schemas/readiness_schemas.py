"""Response models of readiness checks."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasPath, Field

from agent_rft.problems.readiness_reasons import Verdict
from agent_rft.serve.http.schemas.base import ListEntry, ResponseBody, UnixTime
from agent_rft.serve.http.schemas.job_schemas import JobFailure
from agent_rft.serve.stores.job_states import JobStatus


class ReadinessReason(ResponseBody):
    """A reason for the verdict of a readiness check, or a note."""

    code: str
    """Reason code; see [reason codes](readiness.md)."""
    decides: bool
    """Whether the reason decides the verdict; false for a note."""
    message: str
    """Measurement behind the reason."""
    fix: str
    """Recommended action."""


class ReadinessBody(ListEntry):
    """A readiness check: it samples the model before training and reports whether training is likely to help."""

    id: str
    """Id of the readiness check, `ftready-...`."""
    object: Literal["fine_tuning.readiness"] = "fine_tuning.readiness"
    created_at: UnixTime
    """Unix time of the creation, in seconds."""
    finished_at: UnixTime | None
    """Unix time in seconds at which the check succeeded, failed or was cancelled; null if it has not ended."""
    model: str
    """Id of the base model, as in the request."""
    status: JobStatus
    """Status, as for a job. `succeeded` means that the check has a verdict, even a negative one."""
    error: JobFailure | None
    """Error of a failed check; otherwise null."""
    method: dict[str, Any]
    """Method of the request, with defaults for all missing hyperparameters and without secrets."""
    training_file: str
    """Id of the training file, whose rows are sampled."""
    validation_file: str | None
    """Id of the validation file, or null."""
    test_file: str | None
    """Id of the test file, or null."""
    seed: int
    """Seed of sampling, from the request or random."""
    suffix: str | None
    """Suffix of the request, or null."""
    metadata: dict[str, str] | None = Field(validation_alias="labels")
    """Metadata of the request."""
    samples: int = Field(validation_alias=AliasPath("readiness", "samples"))
    """Rollouts per row."""
    target_latency_s: float | None = Field(validation_alias=AliasPath("readiness", "target_s"))
    """Target for the model and tool time of a rollout in seconds, or null."""
    verdict: Verdict | None = Field(default=None, validation_alias=AliasPath("findings", "verdict"))
    """`train`, `fix_first` or `sft_warm_up`; null until the check has succeeded."""
    reasons: list[ReadinessReason] = Field(default=[], validation_alias=AliasPath("findings", "reasons"))
    """Reasons: first those that decide the verdict, then notes."""
    findings: dict[str, Any] | None
    """All findings except the rows; null until the check has succeeded."""
    result_files: list[str]
    """Ids of two files: `readiness.json` has the findings with all rows, and `readiness.html` shows them as a page."""
