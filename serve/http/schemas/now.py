"""What the processes of a job do at this moment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rft.serve.http.schemas.base import ResponseBody
from agent_rft.serve.stores.job_states import JobStatus


class EngineNow(ResponseBody):
    name: str
    state: Literal["waits", "starts", "asleep", "ready"]
    """`waits` for room in the cluster, `starts` or loads weights, `asleep` while the learner has its GPUs, `ready`."""
    rollouts: int
    """Rollouts in flight on it."""


class DoingNow(ResponseBody):
    """A piece of work in progress."""

    trace_id: str
    """Its rollout; empty: of none."""
    stage: str
    """`sampling`, `tool calls`, `grading`, `session start`, `weight update`, or a method of the learner."""
    for_s: float
    """How long it has lasted."""


class ActorNow(ResponseBody):
    """A process of the job: an engine, a learner rank, a dispatcher, or the graders'."""

    name: str
    doing: list[DoingNow]
    """What it does; of an engine, the rollouts that have been in each stage longest."""
    silent_s: float
    """For how long it has not answered."""


class EndpointNow(ResponseBody):
    """A tool, session server, grader or judge. Recent values are those of the last `recent_s`, about a minute."""

    name: str
    limit: float
    """Requests that it may have in progress now; the limit grows and falls with its answers."""
    in_flight: int
    queued: int
    """Requests that wait for their turn."""
    breaker: Literal["closed", "half_open", "open"]
    """open: it fails, so it gets only an occasional probe."""
    down_s: float | None = None
    """How long it has been down: its breaker is not closed; null: it is up."""
    delayed_calls: int = 0
    """Calls that have had to wait because it is down."""
    calls: int
    failed: int
    retries: int
    recent_s: float
    recent_calls: int
    recent_errors: dict[str, int]
    """By kind."""
    errors: dict[str, int]
    """By kind, since its processes started."""
    latency_p50_s: float | None
    """Median of recent answers; null: there were none."""
    latency_p95_s: float | None


class JobNow(ResponseBody):
    """What the processes of a job do at this moment: an extension of OpenAI's API."""

    object: Literal["fine_tuning.job.now"] = "fine_tuning.job.now"
    fine_tuning_job_id: str
    """Id of its job."""
    status: JobStatus
    """The job's."""
    age_s: float | None
    """How old the rest is; null: the job has no processes, and all lists are empty."""
    engines: list[EngineNow] = Field(default=[])
    actors: list[ActorNow] = Field(default=[])
    endpoints: list[EndpointNow] = Field(default=[])
