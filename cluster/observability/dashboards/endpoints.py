"""Endpoints dashboard: failures, latency and load of tools, graders, judges and session servers."""

from __future__ import annotations

from typing import Any

from agent_rft.cluster.observability.alerts import alert
from agent_rft.cluster.observability.dashboards.grafana import Dashboard, Panel
from agent_rft.cluster.observability.dashboards.queries import (
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

WIDE: Any = {"width": 24, "height": 10, "beside": True}

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
                    alerts=(alert("EndpointFailing"),),
                ),
                panel(rate_of("endpoint/<endpoint>/calls")),
                panel(*(quantile_of(q, "endpoint/<endpoint>/latency_s") for q in (0.5, 0.95, 0.99)), **WIDE),
                panel(rate_of("endpoint/<endpoint>/errors/<kind>"), beside=True),
                panel(rate_of("tool/<tool>/errors")),
                panel(
                    *(rate_of(f"endpoint/<endpoint>/{kind}") for kind in ("retries", "waits", "hedges")),
                    title="Retries per second",
                    **WIDE,
                ),
                panel(
                    *(sum_of(f"endpoint/<endpoint>/{requests}") for requests in ("in_flight", "limit", "queued")),
                    title="Requests in flight and limit",
                    **WIDE,
                ),
                panel(quantile_of(0.95, "endpoint/<endpoint>/queue_s")),
                panel(max_of("endpoint/<endpoint>/breaker"), alerts=("EndpointDown",)),
                panel(
                    rate_of("endpoint/<endpoint>/bytes_out"),
                    rate_of("endpoint/<endpoint>/bytes_in"),
                    title="Bytes per second",
                    **WIDE,
                ),
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
    (JOBS.of_one(), ENDPOINTS),
    ANNOTATIONS,
    page="jobs/$job",
)
