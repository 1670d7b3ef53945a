"""Failures, latency and load of tools, graders, judges and session servers."""

from __future__ import annotations

from cluster.observability.dashboards.grafana import Dashboard, Panel
from cluster.observability.dashboards.queries import (
    ANNOTATIONS,
    ENDPOINTS,
    JOBS,
    max_of,
    panel,
    quantile_of,
    rate_of,
    ratio,
    sum_of,
)

ENDPOINTS_DASHBOARD = Dashboard(
    "endpoints",
    "agent-rft: Endpoints",
    (
        (
            "Tools, graders, judges and session servers",
            (
                Panel(
                    "Failed calls",
                    (ratio(rate_of("endpoint/<endpoint>/failed"), rate_of("endpoint/<endpoint>/calls")),),
                    "percentunit",
                    about="Share of calls that ended without an answer after all retries.",
                ),
                panel(*(quantile_of(q, "endpoint/<endpoint>/latency_s") for q in (0.5, 0.95, 0.99))),
                panel(rate_of("endpoint/<endpoint>/calls")),
                panel(rate_of("endpoint/<endpoint>/errors/<kind>")),
                panel(
                    *(rate_of(f"endpoint/<endpoint>/{again}") for again in ("retries", "waits", "hedges")),
                    title="Retries per second",
                ),
                panel(quantile_of(0.95, "endpoint/<endpoint>/queue_s")),
                panel(
                    *(sum_of(f"endpoint/<endpoint>/{requests}") for requests in ("in_flight", "limit", "queued")),
                    title="Requests in flight and limit",
                ),
                panel(max_of("endpoint/<endpoint>/breaker")),
                panel(
                    rate_of("endpoint/<endpoint>/bytes_out"),
                    rate_of("endpoint/<endpoint>/bytes_in"),
                    title="Bytes per second",
                ),
                panel(rate_of("tool/<tool>/errors")),
            ),
        ),
        (
            "Grading",
            (
                panel(*(quantile_of(q, "grade_s") for q in (0.5, 0.95))),
                panel(rate_of("grade_errors/<kind>")),
            ),
        ),
    ),
    (JOBS, ENDPOINTS),
    ANNOTATIONS,
)
