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
    """Human-readable description of the reason."""
    fix: str
    """Recommended action."""


class ReadinessBody(ListEntry):
    """A readiness check, which samples the model before training and reports whether training is likely to help."""

    id: str
    """Id of the readiness check, `ftready-...`."""
    object: Literal["fine_tuning.readiness"] = "fine_tuning.readiness"
    created_at: UnixTime
    """Creation time in Unix seconds."""
    finished_at: UnixTime | None
    """End time in Unix seconds; null until the check has ended."""
    model: str
    """Id of the base model, as in the request."""
    status: JobStatus
    """Status, as for a job. `succeeded` means that the check has a verdict, even a negative one."""
    error: JobFailure | None
    """Error of a failed check; otherwise null."""
    method: dict[str, Any]
    """Method from the request, with default hyperparameters added and secrets removed."""
    training_file: str
    """Id of the training file, whose rows are sampled."""
    validation_file: str | None
    """Id of the validation file, or null."""
    test_file: str | None
    """Id of the test file, or null."""
    seed: int
    """Seed for sampling; random if the request has no seed."""
    suffix: str | None
    """Suffix from the request, or null."""
    metadata: dict[str, str] | None = Field(validation_alias="labels")
    """Metadata from the request."""
    samples: int = Field(validation_alias=AliasPath("readiness", "samples"))
    """Rollouts per row."""
    target_latency_s: float | None = Field(validation_alias=AliasPath("readiness", "target_s"))
    """Maximum seconds that the model and the tools should take per rollout; null if there is no target."""
    verdict: Verdict | None = Field(default=None, validation_alias=AliasPath("findings", "verdict"))
    """`train`, `fix_first` or `sft_warm_up`; null until the check has succeeded."""
    reasons: list[ReadinessReason] = Field(default=[], validation_alias=AliasPath("findings", "reasons"))
    """Reasons: first those that decide the verdict, then notes."""
    findings: dict[str, Any] | None
    """All findings except the rows; null until the check has succeeded."""
    result_files: list[str]
    """Ids of two files. `readiness.json` has all findings and rows. `readiness.html` is a page with the findings."""
