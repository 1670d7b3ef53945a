"""Objects of OpenAI's fine-tuning API: a job, its events and its checkpoints. Unknown keys are ignored.

The `method` of a job stays a dictionary. `agent_rft.cli.openai_import.job_conversion` converts it, and the reader of
job files validates the result.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

L = TypeVar("L", bound="OpenAIListEntry")
JOB_ID = r"ftjob-[A-Za-z0-9_-]{1,100}"


class OpenAIObject(BaseModel):
    """Base class of the objects of OpenAI's API."""

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
    """Hyperparameters of a supervised job in older versions of the API; newer versions use `method`."""
    seed: int | None = None
    user_provided_suffix: str | None = None
    fine_tuned_model: str | None = None
    error: OpenAIJobError | None = None
    created_at: int | None = None
    finished_at: int | None = None
    trained_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    integrations: list[Any] | None = None


class OpenAIListEntry(OpenAIObject):
    """Base class of the objects in the API's lists. A request for the next page contains the last `id`."""

    id: str


class OpenAIEvent(OpenAIListEntry):
    """Event of a job. If the event has the type metrics, `data` contains the metrics of one step."""

    created_at: int
    level: str
    message: str
    type: str | None = None
    data: Any = None


class OpenAICheckpoint(OpenAIListEntry):
    """Checkpoint of a job: the model after step `step_number`, with its metrics."""

    created_at: int
    step_number: int
    fine_tuned_model_checkpoint: str
    metrics: dict[str, Any]


class OpenAIPage(OpenAIObject, Generic[L]):
    """Page of a list in the API; `data` are the objects on the page."""

    data: list[L]
    has_more: bool = False
