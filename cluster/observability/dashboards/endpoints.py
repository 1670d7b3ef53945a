"""Endpoints dashboard: failures, latency and load of tools, graders, judges and session servers."""

from __future__ import annotations

from typing import Any

from agent_rft.cluster.observability.alerts import find_alert
from agent_rft.cluster.observability.dashboards.grafana import Dashboard, Panel
from agent_rft.cluster.observability.dashboards.queries import (
    ANNOTATIONS,
    ENDPOINTS,
    JOBS,
    build_rate_query,
    panel,
    query_max,
    query_quantile,
    query_ratio,
    query_sum,
)

WIDE_PANEL_OPTIONS: Any = {"width": 24, "height": 10, "legend_at_right": True}

ENDPOINTS_DASHBOARD = Dashboard(
    "endpoints",
    "agent-rft: Endpoints",
    (
        (
            "Tools, graders, judges and session servers",
            (
                Panel(
                    "Failed calls",
                    (
                        query_ratio(
                            build_rate_query("endpoint/<endpoint>/failed"),
                            build_rate_query("endpoint/<endpoint>/calls"),
                        ),
                    ),
                    "percentunit",
                    about="Share of calls that ended without an answer after all retries.",
                    alerts=(find_alert("EndpointFailing"),),
                ),
                panel(build_rate_query("endpoint/<endpoint>/calls")),
                panel(
                    *(query_quantile(q, "endpoint/<endpoint>/latency_s") for q in (0.5, 0.95, 0.99)),
                    **WIDE_PANEL_OPTIONS,
                ),
                panel(build_rate_query("endpoint/<endpoint>/errors/<kind>"), legend_at_right=True),
                panel(build_rate_query("tool/<tool>/errors")),
                panel(
                    *(
                        build_rate_query(f"endpoint/<endpoint>/{kind}")
                        for kind in ("retries", "backpressure_retries", "hedges")
                    ),
                    title="Retries per second",
                    **WIDE_PANEL_OPTIONS,
                ),
                panel(
                    *(query_sum(f"endpoint/<endpoint>/{requests}") for requests in ("in_flight", "limit", "queued")),
                    title="Requests in flight and limit",
                    **WIDE_PANEL_OPTIONS,
                ),
                panel(query_quantile(0.95, "endpoint/<endpoint>/queue_s")),
                panel(query_max("endpoint/<endpoint>/breaker"), alerts=("EndpointDown",)),
                panel(
                    build_rate_query("endpoint/<endpoint>/bytes_out"),
                    build_rate_query("endpoint/<endpoint>/bytes_in"),
                    title="Bytes per second",
                    **WIDE_PANEL_OPTIONS,
                ),
            ),
        ),
        (
            "Grading",
            (
                panel(*(query_quantile(q, "grade_s") for q in (0.5, 0.95))),
                panel(build_rate_query("grading_errors/<kind>")),
            ),
        ),
    ),
    (JOBS.as_single(), ENDPOINTS),
    ANNOTATIONS,
    console_page="jobs/$job",
)
