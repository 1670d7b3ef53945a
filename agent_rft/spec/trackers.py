"""Settings of experiment trackers: the trackers of a job, as in OpenAI's API, and the operator's URLs and keys."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator
from pydantic_core import PydanticCustomError

from agent_rft.spec.endpoints import BaseUrl, Key, SecretText, StrictModel

Name = Annotated[str, Field(min_length=1, max_length=128)]


class TrackerSpec(StrictModel):
    """Base class of a job's experiment trackers."""


class WandbSettings(TrackerSpec):
    """Project, owner, name and tags of a run in Weights & Biases. The settings have OpenAI's names."""

    project: Name
    """Project of the run; created if it does not exist."""
    entity: Name | None = None
    """Team or user that owns the project; null: the default entity of the operator's key."""
    name: Name | None = None
    """Display name of the run; null: the name of the run folder or, in the API, the job's id."""
    tags: Annotated[tuple[Name, ...], Field(max_length=50)] = ()
    """Tags of the run, for filtering."""


class WandbTrackerSpec(TrackerSpec):
    """Weights & Biases as an experiment tracker of a job."""

    type: Literal["wandb"]
    """Records the run in Weights & Biases; needs the extra `wandb` and the operator's `trackers.wandb`."""
    wandb: WandbSettings
    """Project, names and tags of the run."""


class MlflowSettings(TrackerSpec):
    """Experiment and name of a run in MLflow."""

    experiment: Name = "agent-rft"
    """Experiment of the run; created if it does not exist."""
    name: Name | None = None
    """Name of the run; null: the name of the run folder or, in the API, the job's id."""


class MlflowTrackerSpec(TrackerSpec):
    """MLflow as an experiment tracker of a job."""

    type: Literal["mlflow"]
    """Records the run in MLflow; needs the extra `mlflow` and the operator's `trackers.mlflow`."""
    mlflow: MlflowSettings = MlflowSettings()
    """Experiment and name of the run."""


class TensorboardTrackerSpec(TrackerSpec):
    """TensorBoard as an experiment tracker of a job."""

    type: Literal["tensorboard"]
    """Writes TensorBoard files to `tensorboard` in the run folder; needs the extra `tensorboard`."""


Integration = Annotated[WandbTrackerSpec | MlflowTrackerSpec | TensorboardTrackerSpec, Field(discriminator="type")]


def _check_unique_types(trackers: tuple[Integration, ...]) -> tuple[Integration, ...]:
    """Reject two trackers of one type, which would write to the same run or files."""
    types = [integration.type for integration in trackers]
    if duplicates := sorted({kind for kind in types if types.count(kind) > 1}):
        fix = {"fix": "name each tracker once", "types": ", ".join(duplicates)}
        raise PydanticCustomError("duplicate_integration", "contains a type more than once: {types}", fix)
    return trackers


Integrations = Annotated[tuple[Integration, ...], Field(max_length=8), AfterValidator(_check_unique_types)]


class WandbAccess(StrictModel):
    """Settings for access to Weights & Biases."""

    api_key: Key | None = None
    """API key, written as `${NAME}`; null: the tracker can only be used with `offline: true`."""
    base_url: BaseUrl | None = None
    """URL of your own server; null: the public Weights & Biases server."""
    offline: bool = False
    """Write the tracking data to the run folder instead of sending it; `wandb sync` uploads the data later."""


class MlflowAccess(StrictModel):
    """Settings for access to MLflow."""

    tracking_uri: SecretText
    """URI of a tracking server, a database or a folder, such as `https://mlflow.example.com` or
    `sqlite:////data/mlflow.db`. If the server requires a user name and password, the URI contains them."""
    token: Key | None = None
    """Token, written as `${NAME}` and sent as `Authorization: Bearer`; null: no token is sent."""

    @field_validator("tracking_uri")
    @classmethod
    def _check_uri(cls, uri: SecretStr) -> SecretStr:
        try:
            urlsplit(uri.get_secret_value()).port  # noqa: B018 - reading the port checks it
        except ValueError:
            raise ValueError("must be a URI") from None
        return uri


class TrackerAccess(StrictModel):
    """Settings for jobs' access to experiment trackers.

    A job only names a tracker; the operator sets the tracker's URL and key.
    """

    wandb: WandbAccess | None = None
    """Access to Weights & Biases; null: jobs cannot use it."""
    mlflow: MlflowAccess | None = None
    """Access to MLflow; null: jobs cannot use it."""
