"""The operator's configuration: what jobs may reach and use. A job can never change it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, IPvAnyNetwork, SecretStr

from trainer.spec.endpoints import Endpoint, Positive, Strict

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]


class ModelEndpoint(Endpoint):
    """An OpenAI-compatible endpoint that serves a judge or an embedding model.

    `model` is the model's name at the endpoint, if it differs from the name that graders use.
    """

    base_url: str
    api_key: SecretStr | None = None
    model: str | None = None


class ServerLimits(Strict):
    """Limits of the API.

    Attributes:
        max_uploads: Concurrent file uploads. Behind Ray Serve's proxy an upload is held in memory if it arrives faster
            than the disk can write it.
        requests_per_minute: Rate limit of an API key that has no rate limit of its own.
        max_trial_calls: Concurrent trial calls of graders and tools through the API.
    """

    max_body_bytes: Positive = 32_000_000
    max_file_bytes: Positive = 512 * 2**20
    max_uploads: Positive = 4
    requests_per_minute: Positive = 3_000
    max_trial_calls: Positive = 16


class EngineLimits(Strict):
    """Engines that serve models through the API.

    Attributes:
        max_models: Models served at a time.
        max_replicas: Most engines per model.
        cores: CPU cores per engine.
        gpus: GPUs per engine. None: 1 if the cluster has GPUs, else 0.
        max_num_seqs: Concurrent requests per engine.
        idle_s: A model without requests for this long is stopped.
        first_call_wait_s: How long a request waits for its model's engine to start.
    """

    max_models: Positive = 1
    max_replicas: Positive = 1
    cores: Positive = 1
    gpus: Count | None = None
    max_num_seqs: Positive = 64
    idle_s: Seconds = 300.0
    first_call_wait_s: Seconds = 120.0


class JobLimits(Strict):
    """Limits of jobs created through the API.

    `max_running` jobs run at a time. `max_cores` and `max_gpus` limit each job (None: all that the cluster has).
    """

    max_running: Positive = 1
    max_cores: Positive | None = None
    max_gpus: Count | None = None
    min_training_rows: Positive = 10
    max_training_rows: Positive = 50_000
    max_validation_rows: Positive = 1_000


class Operator(Strict):
    """The operator's configuration file.

    Attributes:
        allowed_networks: Private, loopback and link-local networks that tools and graders may be in. Public addresses
            are always allowed.
        models: Judge and embedding models, by the name that graders use.
        unsandboxed_python: Run python graders even if no sandbox is available.
        aliases: Model names in clients' code, mapped to a folder or a Hugging Face name.
        wait_for_nodes_s: How long a job may wait for nodes to join the cluster. With 0, a job that does not fit on the
            current nodes is rejected immediately.
        limits: Limits of the API server.
        engines: Engines that serve models.
        jobs: Limits of jobs created through the API.
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
"""The configuration used when there is no file."""
