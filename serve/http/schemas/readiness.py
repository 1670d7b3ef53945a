"""Looks at a job before training."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasPath, Field

from agent_rft.problems.readiness import Verdict
from agent_rft.serve.http.schemas.base import ListEntry, ResponseBody, UnixTime
from agent_rft.serve.http.schemas.jobs import JobFailure
from agent_rft.serve.stores.job_states import JobStatus


class ReadinessReason(ResponseBody):
    """A reason of a verdict, or a note."""

    code: str
    """See [what the codes mean](readiness.md)."""
    decides: bool
    """Whether it decides the verdict; false for a note."""
    message: str
    """What was measured."""
    remedy: str
    """What to do about it."""


class ReadinessBody(ListEntry):
    """Whether a job is worth training: a look at it before the first step."""

    id: str
    """`ftready-...`."""
    object: Literal["fine_tuning.readiness"] = "fine_tuning.readiness"
    created_at: UnixTime
    """Unix time in seconds."""
    finished_at: UnixTime | None
    """Unix time in seconds at which it succeeded, failed or was cancelled; null before."""
    model: str
    """Id of the start model, as in the request."""
    status: JobStatus
    """As of a job; `succeeded` means that there is a verdict, whichever it is."""
    error: JobFailure | None
    """Why it failed; null otherwise."""
    method: dict[str, Any]
    """The request's, with all hyperparameters filled in and without secrets."""
    training_file: str
    """Id of the training file, whose rows are drawn."""
    validation_file: str | None
    """Id of the validation file, or null."""
    test_file: str | None
    """Id of the test file, or null."""
    seed: int
    """Seed of sampling: the request's, or a random one."""
    suffix: str | None
    """The text of the request, or null."""
    metadata: dict[str, str] | None = Field(validation_alias="labels")
    """The pairs of the request."""
    samples: int = Field(validation_alias=AliasPath("look", "samples"))
    """Draws of each row."""
    target_latency_s: float | None = Field(validation_alias=AliasPath("look", "target_s"))
    """Wanted model and tool time of a rollout in seconds, or null."""
    verdict: Verdict | None = Field(default=None, validation_alias=AliasPath("findings", "verdict"))
    """`train`, `fix_first` or `warm_start`; null until it has succeeded."""
    reasons: list[ReadinessReason] = Field(default=[], validation_alias=AliasPath("findings", "reasons"))
    """Why: the reasons that decide, then notes."""
    findings: dict[str, Any] | None
    """All that was found, without the rows; null until it has succeeded."""
    result_files: list[str]
    """Ids of `readiness.json`, the findings with each row, and of `readiness.html`, the same as a page."""
