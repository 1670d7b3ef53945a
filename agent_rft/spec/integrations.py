"""Settings of experiment trackers: what a job names, in the form of OpenAI's API, and what the operator gives them."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator
from pydantic_core import PydanticCustomError

from agent_rft.spec.endpoints import BaseUrl, Key, SecretText, Strict

Name = Annotated[str, Field(min_length=1, max_length=128)]


class IntegrationBase(Strict):
    """Base class of the trackers of a job."""


class WandbSettings(IntegrationBase):
    """Where a run is at Weights & Biases; OpenAI's settings."""

    project: Name
    """Where the run is listed; made if it does not exist."""
    entity: Name | None = None
    """The team or user that has the project; null: the default one of the operator's key."""
    name: Name | None = None
    """The run's display name; null: the name of the run's folder, in the API the job's id."""
    tags: Annotated[tuple[Name, ...], Field(max_length=50)] = ()
    """Labels by which runs are found there."""


class WandbIntegration(IntegrationBase):
    """Weights & Biases."""

    type: Literal["wandb"]
    """A run at Weights & Biases; needs the extra `wandb` and the operator's `integrations.wandb`."""
    wandb: WandbSettings
    """Its project and names."""


class MlflowSettings(IntegrationBase):
    """Where a run is in MLflow."""

    experiment: Name = "agent-rft"
    """The experiment of the run, which is made if there is none."""
    name: Name | None = None
    """The run's name; null: the name of the run's folder, in the API the job's id."""


class MlflowIntegration(IntegrationBase):
    """MLflow."""

    type: Literal["mlflow"]
    """A run in MLflow; needs the extra `mlflow` and the operator's `integrations.mlflow`."""
    mlflow: MlflowSettings = MlflowSettings()
    """Its experiment and name."""


class TensorboardIntegration(IntegrationBase):
    """TensorBoard's files."""

    type: Literal["tensorboard"]
    """TensorBoard's files, in the folder `tensorboard` of the run; needs the extra `tensorboard`."""


Integration = Annotated[WandbIntegration | MlflowIntegration | TensorboardIntegration, Field(discriminator="type")]


def _one_of_a_type(named: tuple[Integration, ...]) -> tuple[Integration, ...]:
    """Two of one type would share a run, or its files."""
    types = [integration.type for integration in named]
    if twice := sorted({kind for kind in types if types.count(kind) > 1}):
        remedy = {"remedy": "name each tracker once", "types": ", ".join(twice)}
        raise PydanticCustomError("duplicate_integration", "names more than once: {types}", remedy)
    return named


Integrations = Annotated[tuple[Integration, ...], Field(max_length=8), AfterValidator(_one_of_a_type)]


class WandbAccess(Strict):
    """How runs reach Weights & Biases."""

    api_key: Key | None = None
    """The key, written as `${NAME}`; null: only `offline` works."""
    base_url: BaseUrl | None = None
    """URL of a server of your own; null: that of Weights & Biases."""
    offline: bool = False
    """Send nothing: the files are written to the run's folder, and `wandb sync` uploads them later."""


class MlflowAccess(Strict):
    """How runs reach MLflow."""

    tracking_uri: SecretText
    """URI of the tracking server, such as `https://mlflow.example.com`, with credentials if it wants a name and a
    password; or a database or folder, such as `sqlite:////data/mlflow.db`."""
    token: Key | None = None
    """Token, sent as `Authorization: Bearer`, written as `${NAME}`; null: none is sent."""

    @field_validator("tracking_uri")
    @classmethod
    def _is_a_uri(cls, uri: SecretStr) -> SecretStr:
        try:
            urlsplit(uri.get_secret_value()).port  # noqa: B018 - reading the port checks it
        except ValueError:
            raise ValueError("must be a URI") from None
        return uri


class IntegrationAccess(Strict):
    """What trackers of jobs need. A job names a tracker; addresses and keys are the operator's."""

    wandb: WandbAccess | None = None
    """Weights & Biases; null: jobs cannot use it."""
    mlflow: MlflowAccess | None = None
    """MLflow; null: jobs cannot use it."""
