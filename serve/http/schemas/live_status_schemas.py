"""Response models for the live status of a job's processes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agent_rft.serve.http.schemas.base import ResponseBody
from agent_rft.serve.stores.job_states import JobStatus


class EngineLiveStatus(ResponseBody):
    """Current state of an inference engine of the job."""

    name: str
    state: Literal["waiting", "starting", "offloaded", "ready"]
    """`waiting` for resources, `starting` (includes loading weights), `offloaded` while the learner uses its GPUs, or
    `ready`."""
    rollouts: int
    """Number of running rollouts on the engine."""


class ActorActivity(ResponseBody):
    """Current activity of a process."""

    trace_id: str
    """Trace id of the rollout; empty if the activity does not belong to a rollout."""
    stage: str
    """Activity: `sampling`, `tool calls`, `grading`, `session start`, `weight update` or a method of the learner."""
    duration_s: float
    """Seconds since the activity began."""


class ActorLiveStatus(ResponseBody):
    """Current activities of a process of the job: an engine, a learner rank, a dispatcher or the grader pool."""

    name: str
    work: list[ActorActivity]
    """Current activities. For an engine, only the oldest rollouts in each stage are listed."""
    silent_s: float
    """Seconds since the process last responded to a heartbeat."""


class EndpointLiveStatus(ResponseBody):
    """State of a tool, session server, grader or judge. Recent values cover about one minute (`recent_s` seconds)."""

    name: str
    limit: float
    """Current limit on concurrent requests. It adapts to the endpoint's responses."""
    in_flight: int
    queued: int
    """Number of queued requests."""
    breaker: Literal["closed", "half_open", "open"]
    """State of the circuit breaker. If it is `open`, the endpoint is failing and gets only occasional probes."""
    down_s: float | None = None
    """Seconds since the breaker opened; null if it is closed."""
    delayed_calls: int = 0
    """Number of calls that had to wait because the endpoint was down."""
    calls: int
    failed: int
    retries: int
    recent_s: float
    recent_calls: int
    recent_errors: dict[str, int]
    """Number of recent errors by kind."""
    errors: dict[str, int]
    """Number of errors by kind since the job's processes started."""
    latency_p50_s: float | None
    """Median latency of recent responses; null if there were no responses."""
    latency_p95_s: float | None
    """95th percentile of the latency of recent responses; null if there were no responses."""


class JobLiveStatus(ResponseBody):
    """Live status of a job's processes. Not part of OpenAI's API."""

    object: Literal["fine_tuning.job.live_status"] = "fine_tuning.job.live_status"
    fine_tuning_job_id: str
    """Id of the job."""
    status: JobStatus
    """Status of the job."""
    age_s: float | None
    """Seconds since `engines`, `actors` and `endpoints` were updated.

    If the job has no processes, `age_s` is null and these lists are empty."""
    engines: list[EngineLiveStatus] = Field(default=[])
    actors: list[ActorLiveStatus] = Field(default=[])
    endpoints: list[EndpointLiveStatus] = Field(default=[])
