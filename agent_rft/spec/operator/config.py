"""The operator's configuration: what jobs may reach and use. A job can never change it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr

from agent_rft.spec.endpoints import BaseUrl, Endpoint, Headers, Key, Positive, Strict
from agent_rft.spec.integrations import IntegrationAccess
from agent_rft.spec.nodes import NodeGroups
from agent_rft.spec.operator.allowed import Allowed, AllowedEntry

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
AnswerFormat = Literal["json_schema", "json_object", "none"]


class ModelEndpoint(Endpoint):
    """An OpenAI-compatible endpoint that serves a judge or an embedding model."""

    base_url: BaseUrl
    """URL of an OpenAI-compatible server, up to and including `/v1`. It may be a private address: `allowed_networks` is
    for what jobs name."""
    api_key: Key | None = None
    """API key, sent as `Authorization: Bearer`; write it as `${NAME}`; null: no key is sent."""
    model: str | None = None
    """The model's name at that server; by default the name that it has in `models`."""
    scoring: Literal["answer", "logprobs"] = "answer"
    """How `score_model` and `label_model` read this judge: by its `answer`, JSON with steps and a result, or by the
    `logprobs` of its answer's first token, which must be a label or a digit. `logprobs` needs a server that returns 20
    `top_logprobs`. Set it for small judges, and for grades that are fine and repeatable at the price of one token."""
    response_format: AnswerFormat | None = None
    """How this judge is made to answer with JSON: `json_schema` (the server enforces the schema), `json_object` (it
    enforces JSON; the schema is in the system message) or `none` (for servers that know no response format). null:
    `json_schema`, or `json_object` once the server has refused that. Answers are read equally strictly."""


class ServerLimits(Strict):
    """Limits of the API."""

    max_body_bytes: Positive = 4 * 2**20
    """Largest body in bytes of a request other than a file upload; a larger one is answered with 413. Raise it if
    conversations are longer than a million tokens."""
    max_connections: Positive = 2_000
    """Open connections of clients, and requests in progress; half of them of one address, and of one API key. Further
    connections are closed, further requests answered with 429."""
    max_file_bytes: Positive = 512 * 2**20
    """Largest uploaded file in bytes; a larger one is answered with 413. OpenAI's limit is 512 MB."""
    max_uploads: Positive = 4
    """Concurrent file uploads, half of them of one API key; further ones are answered with 429. Behind Ray Serve's
    proxy an upload is held in memory if it arrives faster than the disk can write it, so lower this if memory is
    short."""
    requests_per_minute: Positive = 3_000
    """Rate limit of an API key that has none of its own; further requests are answered with 429 and Retry-After."""
    max_trial_calls: Positive = 16
    """Sandboxes, judges' answers and calls of endpoints at a time for trials (`graders/run`, `tool/run`, the `grader`
    of chat completions and responses); one key has at most three quarters. Others wait, up to two minutes; then 429."""


class EngineLimits(Strict):
    """Engines that serve models through the API."""

    max_models: Positive = 1
    """Models served at a time. A call for a further one waits until another is idle, which is then removed."""
    max_replicas: Positive = 1
    """Most engines per model; they are added while calls queue. Each needs `cores` and `gpus`."""
    cores: Positive = 1
    """CPU cores per engine. On CPUs it computes with them; on GPUs a few are enough."""
    gpus: Count | None = None
    """GPUs per engine; null: 1 if the cluster has GPUs, else 0. Set it if GPU nodes join only on demand, since null
    depends on the nodes that are there."""
    max_adapters: Positive = 8
    """LoRA adapters of one base that its engine holds at a time, beside the base itself. A call for a further one waits
    until another has no requests, and takes its place. Each slot takes as much memory as an adapter of rank 32."""
    max_num_seqs: Positive = 64
    """Requests that an engine decodes at a time; further ones wait in it or start another replica."""
    idle_s: Seconds = 300.0
    """Seconds without requests after which a model is stopped and its resources become free; surplus engines stop after
    the same time. The next call has to wait for a start."""
    first_call_wait_s: Seconds = 120.0
    """Seconds that a call waits for its model's engine to start; then it is answered with 503 and Retry-After. Raise it
    for large models if clients can wait that long."""


class JobLimits(Strict):
    """Limits of jobs created through the API."""

    max_running: Positive = 1
    """Jobs of the API that run at a time; the others wait in a queue."""
    max_cores: Positive | None = None
    """Most CPU cores of one job; null: all that the cluster has. Applies to `agent-rft train` too; a job that needs
    more is refused."""
    max_gpus: Count | None = None
    """Most GPUs of one job; null: all that the cluster has. Applies to `agent-rft train` too; a job that needs more is
    refused."""
    min_training_rows: Positive = 10
    """Fewest rows of a training file in the API; a job with fewer fails. OpenAI's limit is 10."""
    max_training_rows: Positive = 50_000
    """Most rows of a training file in the API; a job with more fails. OpenAI's limit is 50,000."""
    max_validation_rows: Positive = 1_000
    """Most rows of a validation file in the API; a job with more fails. OpenAI's limit is 1,000."""
    max_readiness_rollouts: Positive = 100_000
    """Most rollouts of a look before training in the API, rows of the training file times `samples`; one with more
    fails. All are held in memory at its end, some kilobytes each, and no job runs in its place meanwhile."""


class RecordLimits(Strict):
    """What each run folder keeps.

    The oldest rollouts of training are removed first. Those of tests, of the first and the last validation, and of
    steps after the last checkpoint always stay, as does what a resume needs.
    """

    max_rollouts: Positive | None = None
    """Most rollouts that a run folder keeps; null: all. Set it, or `max_rollout_bytes`, if long runs fill the disk: a
    rollout takes some kilobytes."""
    max_rollout_bytes: Positive | None = None
    """Most bytes of rollout files that a run folder keeps; null: all."""


class TraceSettings(Strict):
    """Traces of rollouts, for an OpenTelemetry collector."""

    endpoint: BaseUrl
    """URL that takes traces by OTLP over HTTP, such as `http://collector:4318/v1/traces`."""
    headers: Headers = Field(default_factory=dict)
    """HTTP headers sent with them, such as `Authorization: Bearer ${TRACES_KEY}`."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of the rollouts that are traced. A rollout takes a span for itself, each turn, each call, its grade and
    the requests of its session. Steps are always traced, each with a span for itself and about five parts."""


class Operator(Strict):
    """The operator's configuration file."""

    allowed_networks: tuple[AllowedEntry, ...] = ()
    """Private, loopback and link-local addresses that tools, graders and sessions of jobs may have: networks,
    addresses and hosts, each with a port or, without one, on all ports, such as 127.0.0.1:8700, 10.20.0.0/16:443,
    [fd00::5]:8000 or tools.internal:8000. A host allows what its name resolves to when a connection is made, to URLs
    with that very name only. Public addresses are always allowed; keep it as narrow as your tools allow. If this is
    not set, a command that starts its own Ray cluster on this machine may also call the loopback and private addresses
    that its job file names; set an empty list to forbid that."""
    models: dict[str, ModelEndpoint] = Field(default_factory=dict)
    """Judge and embedding models, by the name that graders use in `model`; a name also stands for its dated forms."""
    unsandboxed_python: bool = False
    """Run python graders even if no sandbox can be created. Then a grader can read what the job's user can read and use
    the network: only for graders that you trust."""
    python_grader_nodes: bool = False
    """Run python graders on Ray nodes with the resource `python_grader` only, in a process that gets their sources and
    no secrets. Jobs and trials wait for such a node, for `wait_for_nodes_s` or 60 s if that is more. Set it on
    Kubernetes, together with the component `k8s/graders`. `agent-rft grade` runs graders where it is called."""
    aliases: dict[str, str] = Field(default_factory=dict)
    """The base models of the server: the name in clients' code, such as gpt-5, mapped to a folder or a Hugging Face
    name. It also stands for its dated forms, such as gpt-5-2025-08-07; one that is here itself comes first."""
    limits: ServerLimits = ServerLimits()
    """Limits of the API server."""
    wait_for_nodes_s: Annotated[float, Field(ge=0)] = 0.0
    """Seconds that a job may wait for nodes to join the cluster. With 0, a job that could never fit on the current
    nodes is refused at once; set it if the cluster grows on demand. What other jobs use is waited for 300 s anyway."""
    nodes: NodeGroups = ()
    """The nodes that the cluster has when all have joined, in the format of `agent-rft plan --cluster`. Set it together
    with `wait_for_nodes_s` if GPU nodes join on demand: `auto` then plans for the nodes that may join, too. Without it
    a job that sets no `cluster.engine_gpus` is refused while no GPU node is there."""
    engines: EngineLimits = EngineLimits()
    """Engines that serve models."""
    jobs: JobLimits = JobLimits()
    """Limits of jobs created through the API."""
    records: RecordLimits = RecordLimits()
    """What each run folder keeps."""
    integrations: IntegrationAccess = IntegrationAccess()
    """Addresses and keys of the experiment trackers that jobs name in their `integrations`."""
    traces: TraceSettings | None = None
    """Where traces of rollouts and steps go; null: there are none. With it, requests to tools, graders and session
    servers of jobs have a `traceparent` header."""
    checkpoint_store: str | None = None
    """Where complete checkpoints are copied: an fsspec URL such as s3://bucket/checkpoints or gs://bucket/checkpoints,
    below which each run has a folder of its name. A run whose folder was lost resumes from there. Credentials come from
    the environment. Set it if run folders are on disks that may be lost; null: none."""

    _job_endpoints: tuple[Allowed, ...] = PrivateAttr(default=())

    @property
    def reachable(self) -> tuple[Allowed, ...]:
        """Everything besides public addresses that endpoints of a job may have."""
        return self.allowed_networks + self._job_endpoints

    def for_trial(self) -> Operator:
        """Return a copy whose judges and embedding models have the deadline of a trial call."""
        return self.model_copy(update={"models": {name: model.for_trial() for name, model in self.models.items()}})

    def with_job_endpoints(self, endpoints: Iterable[Allowed]) -> Operator:
        """Return a copy that also allows `endpoints`, those of a job that the operator runs.

        No configuration file can contain them, so no job of somebody else gets them.
        """
        copy = self.model_copy()
        copy._job_endpoints = tuple(endpoints)
        return copy


NOTHING_ALLOWED = Operator()
"""The configuration used when there is no file."""
