"""Live metrics, which each process updates while it runs."""

from __future__ import annotations

from functools import partial

from agent_rft.metrics.metric import CALLS, GRADES, LONG_SECONDS, SECONDS, TOKENS, Metric

_file_metric = partial(Metric, kind="file")
_histogram = partial(Metric, kind="histogram")
_live_metric = partial(Metric, is_live=True)

# Metrics of each tool, grader, judge or session server since the start. A line of metrics.jsonl has the sums of all
# processes.
_ENDPOINTS: dict[str, Metric] = {
    "endpoint/<endpoint>/calls": _live_metric(
        "calls", "calls", "calls to the endpoint: answered, failed, cancelled or in progress", "counter"
    ),
    "endpoint/<endpoint>/answered": _live_metric("answered calls", "calls", "calls that were answered", "counter"),
    "endpoint/<endpoint>/failed": _live_metric(
        "failed calls", "calls", "calls that ended without an answer after all retries", "counter"
    ),
    "endpoint/<endpoint>/cancelled": _live_metric(
        "cancelled calls", "calls", "calls that the job cancelled", "counter"
    ),
    "endpoint/<endpoint>/errors/<kind>": _live_metric(
        "errors",
        "calls",
        "failed calls by kind of error, such as server_error and deadline; the model sees only tool_error, too_large "
        "and unsupported_part",
        "counter",
    ),
    "endpoint/<endpoint>/retries": _live_metric(
        "retries after failures", "requests", "requests sent again after a failure", "counter", series="after failures"
    ),
    "endpoint/<endpoint>/backpressure_retries": _live_metric(
        "retries after 408, 425, 429 or 503",
        "requests",
        "requests sent again after a response with status 408, 425, 429 or 503",
        "counter",
        series="after 408, 425, 429 or 503",
    ),
    "endpoint/<endpoint>/hedges": _live_metric(
        "hedges of slow requests",
        "requests",
        "requests sent a second time because the first request was slow",
        "counter",
        series="hedges of slow requests",
    ),
    "endpoint/<endpoint>/bytes_out": _live_metric(
        "bytes sent", "bytes", "bytes sent to the endpoint", "counter", series="sent"
    ),
    "endpoint/<endpoint>/bytes_in": _live_metric(
        "bytes received", "bytes", "bytes received from the endpoint", "counter", series="received"
    ),
    "endpoint/<endpoint>/latency_s": _live_metric(
        "response latency", "s", "latency of answered requests", "histogram", SECONDS
    ),
    "endpoint/<endpoint>/queue_s": _live_metric(
        "time in queue", "s", "time that requests waited in the queue", "histogram", SECONDS
    ),
    "endpoint/<endpoint>/latency_sum_s": _file_metric(
        "total response latency", "s", "total latency of answered requests"
    ),
    "endpoint/<endpoint>/queue_sum_s": _file_metric(
        "total time in queue", "s", "total time that requests waited in the queue"
    ),
    "endpoint/<endpoint>/limit": _live_metric(
        "concurrency limit", "requests", "current limit of requests in flight", series="limit"
    ),
    "endpoint/<endpoint>/in_flight": _live_metric(
        "requests in flight", "requests", "requests that were sent but have not been answered yet", series="in flight"
    ),
    "endpoint/<endpoint>/queued": _live_metric(
        "requests queued", "requests", "requests waiting in the queue", series="queued"
    ),
    "endpoint/<endpoint>/breaker": _live_metric(
        "circuit breaker",
        "",
        "state of the circuit breaker: 0 is closed, 1 is half open, 2 is open (the endpoint is down and receives only "
        "probes)",
    ),
}

# Recorded when a rollout ends. Metrics by split (train, validation, test) are recorded when the rollout's step is done,
# unless they are `live`.
_ROLLOUTS: dict[str, Metric] = {
    "rollouts_started": _live_metric("rollouts started", "rollouts", "rollout attempts", "counter"),
    "rollouts/<outcome>": _live_metric(
        "ended rollouts",
        "rollouts",
        "attempts that ended, by outcome: graded, cancelled or the discard reason",
        "counter",
    ),
    "rollouts_in_flight": _live_metric("rollouts in flight", "rollouts", "rollout attempts in progress", series="all"),
    "reward/<split>": _histogram("reward", "", "rewards of graded rollouts", buckets=GRADES),
    "grade/<split>": _histogram(
        "grade", "", "grades of graded rollouts, before penalties are subtracted", buckets=GRADES
    ),
    "rollout_calls/<split>": _histogram("tool calls per rollout", "calls", "tool calls of a rollout", buckets=CALLS),
    "turn_calls/<split>": _histogram(
        "tool calls per turn", "calls", "tool calls of a turn", buckets=CALLS, series="per turn"
    ),
    "rollout_tokens/<split>/<kind>": _histogram(
        "tokens per rollout",
        "tokens",
        "tokens of a rollout by kind: prompt (sum over segments), completion (with reasoning), reasoning, tool",
        buckets=TOKENS,
    ),
    "rollout_wall_s/<split>": _histogram(
        "rollout latency", "s", "wall-clock time of a rollout", buckets=LONG_SECONDS, series="wall-clock"
    ),
    "rollout_busy_s/<split>": _histogram(
        "busy time per rollout",
        "s",
        "model and tool time of a rollout, excluding queueing, retries and pauses",
        buckets=LONG_SECONDS,
        series="busy",
    ),
    "baseline_valid_mean_reward": _live_metric(
        "validation reward before training",
        "",
        "mean reward over the validation file before training",
        series="baseline",
    ),
    "grade_s": _live_metric("grading time", "s", "time from the end of a rollout to its grade", "histogram", SECONDS),
    "grading_errors/<kind>": _live_metric(
        "failed grader calls", "grades", "grader calls that failed, by kind of error", "counter"
    ),
}

_ACTORS: dict[str, Metric] = {
    "engine/<engine>/ready": _live_metric(
        "ready engines", "", "1 if the engine takes rollouts, 0 if it is starting or being replaced"
    ),
    "engine/<engine>/rollouts": _live_metric("rollouts on an engine", "rollouts", "rollouts in progress on the engine"),
    "engine_replacements": _live_metric(
        "engine replacements",
        "engines",
        "engines replaced since the job started, because they failed, or because their log-probabilities differed from "
        "the learner's although the weights were equal",
        "counter",
    ),
    "engine_slots": _live_metric(
        "engine slots", "requests", "requests that the engine can run concurrently", series="total"
    ),
    "engine_slots_used": _live_metric(
        "used engine slots", "requests", "requests that the engine is running", series="used"
    ),
    "engine_waiting": _live_metric(
        "requests waiting for a slot", "requests", "requests waiting for a slot on the engine", series="waiting"
    ),
    "engine_sampled_tokens": _live_metric(
        "sampled tokens", "tokens", "tokens sampled by the engines", "counter", series="sampled"
    ),
    "engine_version": _live_metric("policy version of an engine", "", "policy version of the engine's weights"),
    "engine_pause_s": _live_metric(
        "pause of an engine",
        "s",
        "time for which the engine paused generation for a weight update",
        "histogram",
        SECONDS,
    ),
    "learner_restarts": _live_metric(
        "learner restarts", "restarts", "restarts of all learner ranks after the loss of a rank", "counter"
    ),
    "rank_s/<call>": _live_metric(
        "learner rank time",
        "s",
        "time that a learner rank spent in one call, such as step, snapshot or write; a write runs concurrently "
        "with other calls",
        "histogram",
        LONG_SECONDS,
    ),
}

_JOB_AND_SERVER: dict[str, Metric] = {
    "process_up": _live_metric(
        "process", "", "1 while a process exports its metrics; missing after the process was killed"
    ),
    "metric_source_errors/<error>": _live_metric(
        "metric read errors",
        "errors",
        "failed attempts to read a part of a process's metrics, by type of error",
        "counter",
    ),
    "jobs_ended/<outcome>": _live_metric(
        "ended jobs",
        "jobs",
        "1 after the driver has ended with this outcome: done, stopped (by a signal) or failed; remains 0 if the "
        "driver was killed",
        "counter",
    ),
    "checkpoint_age_s": _live_metric(
        "checkpoint age",
        "s",
        "time since the last checkpoint, or since the start of training; this training time would be lost if the run "
        "were killed now. Measured only during training",
    ),
    "checkpoint_bytes": _live_metric("checkpoint size", "bytes", "size of the last checkpoint on disk"),
    "checkpoint_store_failures/<action>": _live_metric(
        "checkpoint store failures",
        "attempts",
        "failed attempts to upload a checkpoint to the checkpoint store, or to remove old checkpoints from the store",
        "counter",
    ),
    "tracker_failures/<tracker>": _live_metric(
        "failed trackers",
        "trackers",
        "the job's trackers that failed and get no more metrics, by type, such as wandb",
        "counter",
    ),
    "events/<level>": _live_metric("events", "events", "events of the run by level: info, warn or error", "counter"),
    "disk_free_bytes": _live_metric("free disk space", "bytes", "free space on the disk of the run folder"),
    "disk_total_bytes": _live_metric("disk size", "bytes", "size of the disk of the run folder"),
    "api_request_s/<status>/<method>/<route>": _live_metric(
        "API request latency",
        "s",
        "time from the start of an API request to the end of its response",
        "histogram",
        SECONDS,
    ),
    "api_ignored_keys/<key>": _live_metric(
        "ignored request keys",
        "requests",
        "requests for chat completions or responses with a key that the server ignores, counted per key; unknown keys "
        "are counted as `other`",
        "counter",
    ),
    "api_jobs/<state>": _live_metric("API jobs", "jobs", "jobs of the API server by state, such as queued and running"),
    "api_queue_age_s": _live_metric(
        "queue age", "s", "waiting time of the oldest job in the API server's queue; 0 if the queue is empty"
    ),
}

LIVE_GROUPS: dict[str, dict[str, Metric]] = {
    "Endpoints": _ENDPOINTS,
    "Rollouts": _ROLLOUTS,
    "Engines and learner ranks": _ACTORS,
    "Job and server": _JOB_AND_SERVER,
}
"""Live metrics, grouped by heading in the reference."""
LIVE_METRICS = {name: metric for group in LIVE_GROUPS.values() for name, metric in group.items()}
