"""Failures, latency and load of tools, graders, judges and session servers."""

from __future__ import annotations

from cluster.observability.dashboards.grafana import Dashboard, Panel, Query
from cluster.observability.dashboards.queries import ANNOTATIONS, ENDPOINT, JOBS, quantile, rate

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
                        Query(
                            f"{rate('agent_rft_endpoint_failed_total', 'job, endpoint', ENDPOINT)} / "
                            f"{rate('agent_rft_endpoint_calls_total', 'job, endpoint', ENDPOINT)}",
                            "{{endpoint}} {{job}}",
                        ),
                    ),
                    "percentunit",
                    about="Share of calls that ended without an answer after all retries.",
                ),
                Panel(
                    "Response latency",
                    tuple(
                        Query(
                            quantile(q, "agent_rft_endpoint_latency_seconds", "job, endpoint", ENDPOINT),
                            f"p{q * 100:g} {{{{endpoint}}}} {{{{job}}}}",
                        )
                        for q in (0.5, 0.95, 0.99)
                    ),
                    "s",
                ),
                Panel(
                    "Calls per second",
                    (Query(rate("agent_rft_endpoint_calls_total", "job, endpoint", ENDPOINT), "{{endpoint}} {{job}}"),),
                ),
                Panel(
                    "Errors per second",
                    (
                        Query(
                            rate("agent_rft_endpoint_errors_total", "job, endpoint, kind", ENDPOINT),
                            "{{kind}} {{endpoint}} {{job}}",
                        ),
                    ),
                ),
                Panel(
                    "Retries per second",
                    tuple(
                        Query(
                            rate(f"agent_rft_endpoint_{what}_total", "job, endpoint", ENDPOINT),
                            f"{label} {{{{endpoint}}}} {{{{job}}}}",
                        )
                        for what, label in (
                            *(("retries", "after failures"), ("waits", "after 408, 425, 429 or 503")),
                            ("hedges", "hedges of slow requests"),
                        )
                    ),
                ),
                Panel(
                    "Time in queue",
                    (
                        Query(
                            quantile(0.95, "agent_rft_endpoint_queue_seconds", "job, endpoint", ENDPOINT),
                            "p95 {{endpoint}} {{job}}",
                        ),
                    ),
                    "s",
                ),
                Panel(
                    "Requests in flight and limit",
                    (
                        Query(
                            f"sum by (job, endpoint) (agent_rft_endpoint_in_flight{ENDPOINT})",
                            "in flight {{endpoint}} {{job}}",
                        ),
                        Query(
                            f"sum by (job, endpoint) (agent_rft_endpoint_limit{ENDPOINT})", "limit {{endpoint}} {{job}}"
                        ),
                        Query(
                            f"sum by (job, endpoint) (agent_rft_endpoint_queued{ENDPOINT})",
                            "queued {{endpoint}} {{job}}",
                        ),
                    ),
                ),
                Panel(
                    "Circuit breaker",
                    (Query(f"max by (job, endpoint) (agent_rft_endpoint_breaker{ENDPOINT})", "{{endpoint}} {{job}}"),),
                    "none",
                    about="0: closed, 1: half open, 2: open (the endpoint is down and only receives probes).",
                ),
                Panel(
                    "Bytes per second",
                    (
                        Query(
                            rate("agent_rft_endpoint_bytes_out_total", "job, endpoint", ENDPOINT),
                            "to {{endpoint}} {{job}}",
                        ),
                        Query(
                            rate("agent_rft_endpoint_bytes_in_total", "job, endpoint", ENDPOINT),
                            "from {{endpoint}} {{job}}",
                        ),
                    ),
                    "Bps",
                ),
                Panel(
                    "Tool error responses per second",
                    (Query(rate("agent_rft_tool_errors_total", "job, tool"), "{{tool}} {{job}}"),),
                    about="4xx responses, which the model sees.",
                ),
            ),
        ),
        (
            "Grading",
            (
                Panel(
                    "Grading time",
                    tuple(
                        Query(quantile(q, "agent_rft_grade_seconds"), f"p{q * 100:g} {{{{job}}}}") for q in (0.5, 0.95)
                    ),
                    "s",
                    about="From the end of a rollout to its grade.",
                ),
                Panel(
                    "Failed gradings per second",
                    (Query(rate("agent_rft_grade_errors_total", "job, kind"), "{{kind}} {{job}}"),),
                ),
            ),
        ),
    ),
    (JOBS, ("endpoint", 'label_values(agent_rft_endpoint_calls_total{job=~"$job"}, endpoint)')),
    ANNOTATIONS,
)
