"""Statistics of endpoint clients: counters, latency histograms, and their metrics."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from agent_rft.actors.runtime.telemetry.recorder import Exemplar, HistogramCounts
from agent_rft.metrics.metric import SECONDS

STATES = ("closed", "half_open", "open")
"""Breaker states, from best to worst."""


@dataclass(slots=True)
class EndpointStats:
    """Counters of one client since it was created; calls == answered + failed + cancelled + in progress.

    `errors` counts errors by kind. An answered call also counts as an error if the answer cannot be used:

    - failed calls: busy, timeout, deadline, server_error, connection, redirect, refused, no_credit, forbidden_address,
      response_limit
    - answers: tool_error (a 4xx, or an error in MCP's format), too_large, unsupported_part (an output with a part that
      is not text), bad_answer, request_too_large (413, 414, 431), no_credit (usually 402)

    `retries` counts the attempts after a failure, and `backpressure_retries` counts the attempts after an answer that
    asks the client to wait. `hedges` counts duplicate requests, and `hedges_won` counts the duplicates that were
    answered first. Latencies are recorded for each attempt that got a response. Histograms have one bucket per bound in
    SECONDS, and a last bucket for larger values.
    """

    calls: int = 0
    answered: int = 0
    failed: int = 0
    cancelled: int = 0
    retries: int = 0
    backpressure_retries: int = 0
    hedges: int = 0
    hedges_won: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    queue_sum_s: float = 0.0
    queue_counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    latency_sum_s: float = 0.0
    latency_counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    latency_exemplars: list[Exemplar] = field(default_factory=lambda: [Exemplar()] * (len(SECONDS) + 1))
    errors: Counter[str] = field(default_factory=Counter)

    def record_latency(self, latency_s: float, trace_id: str = "") -> None:
        """Record the latency of an answer. `trace_id`, if set, becomes the exemplar of the latency's bucket."""
        bucket = bisect_left(SECONDS, latency_s)
        self.latency_sum_s += latency_s
        self.latency_counts[bucket] += 1
        if trace_id:
            self.latency_exemplars[bucket] = Exemplar(time.time(), latency_s, trace_id)

    def record_queue_time(self, queue_s: float) -> None:
        self.queue_sum_s += queue_s
        self.queue_counts[bisect_left(SECONDS, queue_s)] += 1

    def as_dict(self) -> dict[str, Any]:
        """Return a copy of the counters; safe to call from another thread."""
        values = {counted.name: getattr(self, counted.name) for counted in fields(self)}
        counts = {name: list(values[name]) for name in ("queue_counts", "latency_counts", "latency_exemplars")}
        return values | counts | {"errors": dict(self.errors)}


def compute_quantile_s(counts: Sequence[int], q: float) -> float | None:
    """Return the quantile `q`, from 0 to 1, of a latency histogram, interpolated linearly within a bucket.

    Returns None if the histogram is empty, and the last bound if the quantile is above all bounds.
    """
    rank, below = q * sum(counts), 0
    if not rank:
        return None
    for low, high, count in zip((0.0, *SECONDS), SECONDS, counts, strict=False):
        if below + count >= rank:
            return low + (high - low) * (rank - below) / count
        below += count
    return SECONDS[-1]


COPIED_STATS = (
    *("calls", "answered", "failed", "cancelled", "retries", "backpressure_retries", "hedges", "bytes_out", "bytes_in"),
    *("queue_sum_s", "latency_sum_s", "limit", "in_flight", "queued"),
)
"""Statistics that `to_endpoint_metrics` copies unchanged."""


def to_endpoint_metrics(stats: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Convert EndpointClient.stats of each endpoint to metrics, with the names in `agent_rft.metrics`.

    The metric `breaker` is 0 if the breaker is closed, 1 if it is half open, and 2 if it is open.
    """
    metrics: dict[str, float] = {}
    for name, values in stats.items():
        prefix = f"endpoint/{name}"
        metrics |= {f"{prefix}/{key}": float(values[key]) for key in COPIED_STATS}
        metrics |= {f"{prefix}/errors/{kind}": float(count) for kind, count in values["errors"].items()}
        metrics[f"{prefix}/breaker"] = float(STATES.index(values["breaker"]))
    return metrics


def to_live_metrics(stats: Mapping[str, Mapping[str, Any]]) -> dict[str, float | HistogramCounts]:
    """Convert EndpointClient.stats of each endpoint to metrics for a Recorder.

    The metrics are those of `to_endpoint_metrics`, but with histograms instead of the sums of seconds.
    """
    metrics: dict[str, float | HistogramCounts] = {**to_endpoint_metrics(stats)}
    for name, values in stats.items():
        for what in ("queue", "latency"):
            del metrics[f"endpoint/{name}/{what}_sum_s"]
            counts, exemplars = values[f"{what}_counts"], values.get(f"{what}_exemplars", ())
            metrics[f"endpoint/{name}/{what}_s"] = HistogramCounts(counts, values[f"{what}_sum_s"], exemplars)
    return metrics


def merge_stats(stats: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Add up EndpointClient.stats by endpoint name, over several clients or processes that use the same endpoints."""
    merged: dict[str, dict[str, Any]] = {}
    for endpoints in stats:
        for name, values in endpoints.items():
            into = merged.setdefault(name, {})
            for key, value in values.items():
                into[key] = _add_values(into[key], value) if key in into else value
    return merged


def _add_values(ours: Any, theirs: Any) -> Any:
    if isinstance(ours, dict):
        return dict(Counter(ours) + Counter(theirs))
    if isinstance(ours, list):
        return [_add_values(a, b) for a, b in zip(ours, theirs, strict=True)]
    if isinstance(ours, Exemplar):
        return max(ours, theirs)  # the latest
    if isinstance(ours, str):
        return max(ours, theirs, key=STATES.index)
    return ours + theirs
