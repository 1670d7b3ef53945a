"""Settings of the operator's configuration: the networks, models and resources that jobs may use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PrivateAttr
from pydantic_core import PydanticCustomError

from agent_rft.spec.endpoints import BaseUrl, Endpoint, Headers, Key, PositiveInt, StrictModel
from agent_rft.spec.node_groups import NodeGroups
from agent_rft.spec.operator.allowed_networks import AllowedDestination, AllowedEntry
from agent_rft.spec.trackers import TrackerAccess

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
AnswerFormat = Literal["json_schema", "json_object", "none"]


class ModelEndpoint(Endpoint):
    """An OpenAI-compatible endpoint that serves a judge or an embedding model."""

    base_url: BaseUrl
    """URL of an OpenAI-compatible server, up to and including `/v1`. It may be a private address: `allowed_networks`
    applies only to URLs in jobs."""
    api_key: Key | None = None
    """API key, written as `${NAME}` and sent as `Authorization: Bearer`; null: no key is sent."""
    model: str | None = None
    """Name of the model on the server at `base_url`; null: the model's key in `models`."""
    scoring: Literal["answer", "logprobs"] = "answer"
    """Source of the score from a `score_model` or `label_model` judge. answer: the judge writes JSON with steps and a
    result. logprobs: the score is computed from the log-probabilities of the answer's first token, which must be a
    label or a digit. `logprobs` requires a server that returns 20 `top_logprobs`. Use `logprobs` for small judges, or
    for fine-grained, repeatable grades at the cost of one token."""
    response_format: AnswerFormat | None = None
    """Response format requested from the judge: `json_schema` (the server enforces the schema), `json_object` (the
    server enforces JSON, and the schema is in the system message) or `none` (for servers without response formats).
    null: `json_schema`, or `json_object` after the server has rejected `json_schema`. Answers are parsed just as
    strictly in all cases."""


class ServerLimits(StrictModel):
    """Limits of the API."""

    max_body_bytes: PositiveInt = 4 * 2**20
    """Maximum size in bytes of a request body, except file uploads; a larger body is rejected with 413. Raise it if
    conversations are longer than a million tokens."""
    max_connections: PositiveInt = 2_000
    """Maximum number of client connections, and of requests in progress; one IP address or API key may use half of
    them. Further connections are closed; further requests are rejected with 429."""
    max_file_bytes: PositiveInt = 512 * 2**20
    """Maximum size in bytes of an uploaded file; a larger file is rejected with 413. OpenAI's limit is 512 MB."""
    max_uploads: PositiveInt = 4
    """Maximum number of concurrent file uploads; one API key may use half of them. Further uploads are rejected with
    429. Behind Ray Serve's proxy, an upload is held in memory if it arrives faster than the disk can write it. Lower
    this if memory is short."""
    requests_per_minute: PositiveInt = 3_000
    """Default rate limit of an API key; further requests are rejected with 429 and Retry-After."""
    max_trial_calls: PositiveInt = 16
    """Maximum number of concurrent sandboxes, judge requests and endpoint calls of trials (`graders/run`, `tool/run`,
    and the `grader` of chat completions and responses). One API key may use three quarters of this number. Further
    calls wait for up to two minutes and are then rejected with 429."""


class EngineLimits(StrictModel):
    """Limits of the engines that serve models through the API."""

    max_models: PositiveInt = 1
    """Maximum number of models served at a time. A request for another model waits until a served model is idle and can
    be replaced."""
    max_replicas: PositiveInt = 1
    """Maximum number of engines per model. Engines are added while requests queue; each needs `cores` and `gpus`."""
    cores: PositiveInt = 1
    """CPU cores per engine. An engine without GPUs samples on these cores. An engine with GPUs needs only a few
    cores."""
    gpus: Count | None = None
    """GPUs per engine; null: 1 if the cluster has GPUs when the server starts, else 0. Set a number if GPU nodes join
    only on demand."""
    max_adapters: PositiveInt = 8
    """Maximum number of LoRA adapters that an engine holds at a time, in addition to their base model. If the engine is
    full, a request for another adapter waits until the least recently used adapter is idle and can be replaced. Each
    adapter takes at least as much memory as an adapter of rank 32."""
    max_num_seqs: PositiveInt = 64
    """Maximum number of requests that an engine decodes concurrently. Further requests wait in the engine's queue, or
    cause another engine to start (`max_replicas`)."""
    idle_s: Seconds = 300.0
    """Seconds without requests after which a model is stopped and its resources are released. Surplus engines stop
    after the same time. The next request waits until the model has started again."""
    max_start_wait_s: Seconds = 120.0
    """Maximum seconds that a request waits for its model's engine to start; it is then rejected with 503 and
    Retry-After. Raise it for large models if clients can wait that long."""


class JobLimits(StrictModel):
    """Limits of jobs created through the API."""

    max_running: PositiveInt = 1
    """Maximum number of API jobs that run concurrently; the others queue."""
    max_cores: PositiveInt | None = None
    """Maximum number of CPU cores per job; null: all cores of the cluster. It also applies to `agent-rft train`. A job
    that needs more is rejected."""
    max_gpus: Count | None = None
    """Maximum number of GPUs per job; null: all GPUs of the cluster. It also applies to `agent-rft train`. A job that
    needs more is rejected."""
    min_training_rows: PositiveInt = 10
    """Minimum number of training rows in an API job. A job with fewer rows fails. OpenAI's limit is 10."""
    max_training_rows: PositiveInt = 50_000
    """Maximum number of training rows in an API job. A job with more rows fails. OpenAI's limit is 50,000."""
    max_validation_rows: PositiveInt = 1_000
    """Maximum number of validation rows in an API job. A job with more rows fails. OpenAI's limit is 1,000."""
    max_readiness_rollouts: PositiveInt = 100_000
    """Maximum number of rollouts in one readiness check that the API runs. A check with more rollouts fails. The number
    of rollouts is the number of rows in the training file times `samples`. All rollouts are held in memory at the end,
    a few kilobytes each. A running check counts as one of the `max_running` jobs."""


class RecordLimits(StrictModel):
    """Limits of the records in each run folder.

    The oldest rollouts of training and validation are removed first. Rollouts of tests, of the first and last
    validation, and of steps after the last checkpoint are never removed. Data that a resume needs is also never
    removed.
    """

    max_rollouts: PositiveInt | None = None
    """Maximum number of rollouts in a run folder; null: no limit. If long runs fill the disk, set this or
    `max_rollout_bytes`: a rollout takes a few kilobytes."""
    max_rollout_bytes: PositiveInt | None = None
    """Maximum size in bytes of the rollout files of a run folder; null: no limit."""


class TraceSettings(StrictModel):
    """Export of rollout traces to an OpenTelemetry collector."""

    endpoint: BaseUrl
    """URL that receives traces by OTLP over HTTP, such as `http://collector:4318/v1/traces`."""
    headers: Headers = Field(default_factory=dict)
    """HTTP headers sent with the traces, such as `Authorization: Bearer ${TRACES_KEY}`."""
    sampling_ratio: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of the rollouts that are traced. A traced rollout has one span, and one more for each turn, call, grade and
    session request. All steps are traced, each with one span and about five more for its parts."""


_ORIGIN = re.compile(r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]+|\[[0-9a-f:.]+\])(:(?P<port>[0-9]{1,5}))?/?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}


def _parse_origin(url: str) -> str:
    """Return the URL's origin as browsers send it in the header Origin: in lower case, without the default port."""
    match = _ORIGIN.fullmatch(url.strip().lower())
    if match is None:
        fix = "write the scheme, the host and the port only"
        raise PydanticCustomError("value_error", "must be a URL like https://rft.example.com", {"fix": fix})
    port = "" if match["port"] in (None, _DEFAULT_PORTS[match["scheme"]]) else f":{match['port']}"
    return f"{match['scheme']}://{match['host']}{port}"


Origin = Annotated[str, AfterValidator(_parse_origin)]
"""URL without a path: scheme, host and port."""


class OperatorConfig(StrictModel):
    """The operator's configuration file."""

    allowed_networks: tuple[AllowedEntry, ...] = ()
    """Private, loopback and link-local addresses that tools, graders and sessions of jobs may use. Each entry is a
    network, an IP address or a host, with a port or for all ports: 127.0.0.1:8700, 10.20.0.0/16:443, [fd00::5]:8000 or
    tools.internal:8000. A host entry allows URLs with exactly that host, and the addresses to which it resolves when a
    connection is made. Public addresses are always allowed. List only what your tools need. If this is not set, a
    command that starts its own Ray cluster on this machine may also call the loopback and private addresses in its job
    file; set an empty list to forbid that."""
    models: dict[str, ModelEndpoint] = Field(default_factory=dict)
    """Judge and embedding models, by the name that graders use in `model`. A grader may add a date suffix to the
    name."""
    unsandboxed_python: bool = False
    """Run python graders even if no sandbox can be created. A grader can then use the network and read every file of
    the job's user: set this only if you trust all graders."""
    python_grader_nodes: bool = False
    """Run python graders only on Ray nodes with the resource `python_grader`, in a process that gets their sources but
    no secrets. Jobs and trials wait until such a node joins, for up to `wait_for_nodes_s` or 60 s, whichever is longer.
    Set `python_grader_nodes` on Kubernetes, together with the component `k8s/graders`. `agent-rft grade` always runs
    graders locally."""
    aliases: dict[str, str] = Field(default_factory=dict)
    """Names of the server's base models. Each entry maps a name in client code, such as gpt-5, to a folder or a Hugging
    Face name. Clients may add a date suffix: gpt-5-2025-08-07 also selects the model of gpt-5, unless gpt-5-2025-08-07
    has its own entry."""
    public_url: Origin | None = None
    """URL at which browsers reach the server, such as `https://rft.example.com`; null: any. If it is set, the console
    accepts changes only from pages of this URL, and an https URL restricts the login to https. Set it if a proxy with
    TLS is in front of the server."""
    limits: ServerLimits = ServerLimits()
    """Limits of the API server."""
    wait_for_nodes_s: Annotated[float, Field(ge=0)] = 0.0
    """Seconds that a job may wait for nodes to join the cluster. Choose a value above 0 if the cluster grows on demand.
    With 0, a job that can never fit on the current nodes is rejected immediately. A job always waits up to 300 s for
    resources that other jobs use."""
    nodes: NodeGroups = ()
    """All nodes that the cluster can have, in the format of `agent-rft plan --cluster`. If GPU nodes join only on
    demand, set both `nodes` and `wait_for_nodes_s`, so that `auto` also plans for those nodes. Otherwise a job without
    `cluster.engine_gpus` is rejected while the cluster has no GPU node."""
    engines: EngineLimits = EngineLimits()
    """Limits of the engines that serve models."""
    jobs: JobLimits = JobLimits()
    """Limits of jobs created through the API."""
    records: RecordLimits = RecordLimits()
    """Limits of the records in each run folder."""
    trackers: TrackerAccess = TrackerAccess()
    """URLs and keys of the experiment trackers that jobs name in their `integrations`."""
    traces: TraceSettings | None = None
    """Export of traces of rollouts and steps; null: no traces. With traces, requests to the tools, graders and session
    servers of jobs have a `traceparent` header."""
    checkpoint_store: str | None = None
    """Store to which complete checkpoints are uploaded; null: no uploads. Set it if run folders are on disks that may
    be lost: a run whose local folder was lost resumes from the store. The value is an fsspec URL such as
    s3://bucket/checkpoints or gs://bucket/checkpoints. In the store, each run gets a folder with the run's name.
    Credentials come from the environment."""

    _job_endpoints: tuple[AllowedDestination, ...] = PrivateAttr(default=())

    @property
    def allowed_destinations(self) -> tuple[AllowedDestination, ...]:
        """Networks and hosts that endpoints of a job may use, in addition to public addresses."""
        return self.allowed_networks + self._job_endpoints

    def limit_to_trial(self) -> OperatorConfig:
        """Return a copy for trial calls, with a shorter timeout for judges and embedding models."""
        return self.model_copy(update={"models": {name: model.limit_to_trial() for name, model in self.models.items()}})

    def with_job_endpoints(self, endpoints: Iterable[AllowedDestination]) -> OperatorConfig:
        """Return a copy that also allows `endpoints`, which belong to a job that the operator runs.

        These endpoints are not part of the configuration file, so they are never allowed for jobs of other users.
        """
        copy = self.model_copy()
        copy._job_endpoints = tuple(endpoints)
        return copy


DEFAULT_CONFIG = OperatorConfig()
"""Configuration used if there is no file."""
