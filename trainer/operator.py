"""The operator's configuration: what a job may reach and use, said by whoever runs the cluster, never by a job."""

from __future__ import annotations

from pydantic import Field, IPvAnyNetwork, SecretStr

from trainer.endpoint_spec import Endpoint, Strict


class ModelEndpoint(Endpoint):
    """An OpenAI-compatible endpoint that serves a judge or an embedding model. `model` is its name there, where it is
    another one than the name that graders use."""

    base_url: str
    api_key: SecretStr | None = None
    model: str | None = None


class Operator(Strict):
    """`allowed_networks`: private, loopback and link-local addresses that tools and graders may have; public ones
    always may. `models`: judges by the name that graders use. `unsandboxed_python`: python graders run even where no
    sandbox can be made."""

    allowed_networks: tuple[IPvAnyNetwork, ...] = ()
    models: dict[str, ModelEndpoint] = Field(default_factory=dict)
    unsandboxed_python: bool = False


NOTHING_ALLOWED = Operator()
"""Without a configuration."""
