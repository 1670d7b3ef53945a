"""Objects of OpenAI's fine-tuning API: a job, its events and its checkpoints. Unknown keys are ignored.

`method` is not parsed here: `agent_rft.cli.openai_import.job_conversion` converts it, and the reader of job files
validates the result.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

L = TypeVar("L", bound="Listed")
JOB_ID = r"ftjob-[A-Za-z0-9_-]{1,100}"


class OpenAIObject(BaseModel):
    """Base class of the API's objects."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class OpenAIJobError(OpenAIObject):
    """Error of a failed job."""

    code: str | None = None
    message: str | None = None
    param: str | None = None


class OpenAIJob(OpenAIObject):
    """Fine-tuning job, as returned by `client.fine_tuning.jobs.retrieve(id)`."""

    id: Annotated[str, Field(pattern=f"^{JOB_ID}$")]
    model: str
    status: str
    training_file: str
    validation_file: str | None = None
    method: dict[str, Any] | None = None
    hyperparameters: dict[str, Any] | None = None
    """Hyperparameters of a supervised job; older API versions have them only here."""
    seed: int | None = None
    user_provided_suffix: str | None = None
    fine_tuned_model: str | None = None
    error: OpenAIJobError | None = None
    created_at: int | None = None
    finished_at: int | None = None
    trained_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    integrations: list[Any] | None = None


class Listed(OpenAIObject):
    """Entry of a list."""

    id: str


class OpenAIEvent(Listed):
    """Event of a job; `data` of a metrics event has the numbers of one step."""

    created_at: int
    level: str
    message: str
    type: str | None = None
    data: Any = None


class OpenAICheckpoint(Listed):
    """Checkpoint of a job's model."""

    created_at: int
    step_number: int
    fine_tuned_model_checkpoint: str
    metrics: dict[str, Any]


class OpenAIPage(OpenAIObject, Generic[L]):
    """Page of a list."""

    data: list[L]
    has_more: bool = False
