"""The operator's configuration: what a job may reach and use, said by whoever runs the cluster, never by a job."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, IPvAnyNetwork, SecretStr

from trainer.spec.endpoints import Endpoint, Positive, Strict

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]


class ModelEndpoint(Endpoint):
    """An OpenAI-compatible endpoint that serves a judge or an embedding model. `model` is its name there, where it is
    another one than the name that graders use.
    """

    base_url: str
    api_key: SecretStr | None = None
    model: str | None = None


class ServerLimits(Strict):
    """What the API takes. `requests_per_minute` is that of a key without a rate of its own; `max_trial_calls` bounds
    how many graders and tools are tried through the API at a time, `max_uploads` how many files come in (behind
    Ray Serve's proxy in memory, where they come faster than the disk takes them).
    """

    max_body_bytes: Positive = 32_000_000
    max_file_bytes: Positive = 512 * 2**20
    max_uploads: Positive = 4
    requests_per_minute: Positive = 3_000
    max_trial_calls: Positive = 16


class EngineLimits(Strict):
    """Engines that serve models. `max_models` of them are served at a time, each by 1 to `max_replicas` engines with
    `cores` and `gpus` (None: one where the cluster has any) and room for `max_num_seqs` requests each. A model without
    a request for `idle_s` stops. A call waits for its engine for `first_call_wait_s`.
    """

    max_models: Positive = 1
    max_replicas: Positive = 1
    cores: Positive = 1
    gpus: Count | None = None
    max_num_seqs: Positive = 64
    idle_s: Seconds = 300.0
    first_call_wait_s: Seconds = 120.0


class JobLimits(Strict):
    """Jobs of the API. `max_running` run at a time; each may take `max_cores` and `max_gpus` (None: what the cluster
    has), and its files may have so many rows.
    """

    max_running: Positive = 1
    max_cores: Positive | None = None
    max_gpus: Count | None = None
    min_training_rows: Positive = 10
    max_training_rows: Positive = 50_000
    max_validation_rows: Positive = 1_000


class Operator(Strict):
    """`allowed_networks`: private, loopback and link-local addresses that tools and graders may have; public ones
    always may. `models`: judges by the name that graders use. `unsandboxed_python`: python graders run even where no
    sandbox can be made. `aliases`: names of base models in clients' code -> a folder or a Hugging Face name.
    `wait_for_nodes_s`: how long a job may wait for nodes that are still to join the cluster; with 0, one that the
    present nodes cannot hold is refused at once. `limits`, `engines`, `jobs`: of the server.
    """

    allowed_networks: tuple[IPvAnyNetwork, ...] = ()
    models: dict[str, ModelEndpoint] = Field(default_factory=dict)
    unsandboxed_python: bool = False
    aliases: dict[str, str] = Field(default_factory=dict)
    limits: ServerLimits = ServerLimits()
    wait_for_nodes_s: Annotated[float, Field(ge=0)] = 0.0
    engines: EngineLimits = EngineLimits()
    jobs: JobLimits = JobLimits()


NOTHING_ALLOWED = Operator()
"""Without a configuration."""
