"""The operator's configuration: what a job may reach and use, said by whoever runs the cluster, never by a job."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, IPvAnyNetwork, SecretStr

from trainer.endpoint_spec import Endpoint, Positive, Strict


class ModelEndpoint(Endpoint):
    """An OpenAI-compatible endpoint that serves a judge or an embedding model. `model` is its name there, where it is
    another one than the name that graders use."""

    base_url: str
    api_key: SecretStr | None = None
    model: str | None = None


class ServerLimits(Strict):
    """What the API takes. `requests_per_minute` is that of a key without a rate of its own; `max_trial_calls` bounds
    how many graders and tools are tried through the API at a time."""

    max_body_bytes: Positive = 32_000_000
    max_file_bytes: Positive = 512 * 2**20
    requests_per_minute: Positive = 3_000
    max_trial_calls: Positive = 16


class Operator(Strict):
    """`allowed_networks`: private, loopback and link-local addresses that tools and graders may have; public ones
    always may. `models`: judges by the name that graders use. `unsandboxed_python`: python graders run even where no
    sandbox can be made. `aliases`: names of base models in clients' code -> a folder or a Hugging Face name. `limits`:
    of the server. `wait_for_nodes_s`: how long a job may wait for nodes that are still to join the cluster; with 0, one
    that the present nodes cannot hold is refused at once."""

    allowed_networks: tuple[IPvAnyNetwork, ...] = ()
    models: dict[str, ModelEndpoint] = Field(default_factory=dict)
    unsandboxed_python: bool = False
    aliases: dict[str, str] = Field(default_factory=dict)
    limits: ServerLimits = ServerLimits()
    wait_for_nodes_s: Annotated[float, Field(ge=0)] = 0.0


NOTHING_ALLOWED = Operator()
"""Without a configuration."""
