"""What is read of OpenAI's fine-tuning API: a job, its events and its checkpoints; unknown keys are ignored.

`method` stays as it is: `agent_rft.cli.openai_import.definition` turns it into ours, and the reader of job files
validates that.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

L = TypeVar("L", bound="Listed")
JOB_ID = r"ftjob-[A-Za-z0-9_-]{1,100}"


class Wire(BaseModel):
    """Base class of what is read."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class WireError(Wire):
    """Why a job failed."""

    code: str | None = None
    message: str | None = None
    param: str | None = None


class WireJob(Wire):
    """A fine-tuning job, as `client.fine_tuning.jobs.retrieve(id)` gives it."""

    id: Annotated[str, Field(pattern=f"^{JOB_ID}$")]
    model: str
    status: str
    training_file: str
    validation_file: str | None = None
    method: dict[str, Any] | None = None
    hyperparameters: dict[str, Any] | None = None
    """Those of a supervised job; the older API has them here only."""
    seed: int | None = None
    user_provided_suffix: str | None = None
    fine_tuned_model: str | None = None
    error: WireError | None = None
    created_at: int | None = None
    finished_at: int | None = None
    trained_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    integrations: list[Any] | None = None


class Listed(Wire):
    """An entry of a list."""

    id: str


class WireEvent(Listed):
    """What happened in a job; `data` of a metrics event has the numbers of one step."""

    created_at: int
    level: str
    message: str
    type: str | None = None
    data: Any = None


class WireCheckpoint(Listed):
    """A saved state of a job's model."""

    created_at: int
    step_number: int
    fine_tuned_model_checkpoint: str
    metrics: dict[str, Any]


class WirePage(Wire, Generic[L]):
    """A part of a list."""

    data: list[L]
    has_more: bool = False
