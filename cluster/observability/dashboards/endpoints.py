"""How tools, graders, judges and session servers do."""

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
                    about="Of those that ended without an answer, after all tries.",
                ),
                Panel(
                    "Latency of answers",
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
                    "Calls a second",
                    (Query(rate("agent_rft_endpoint_calls_total", "job, endpoint", ENDPOINT), "{{endpoint}} {{job}}"),),
                ),
                Panel(
                    "Errors a second",
                    (
                        Query(
                            rate("agent_rft_endpoint_errors_total", "job, endpoint, kind", ENDPOINT),
                            "{{kind}} {{endpoint}} {{job}}",
                        ),
                    ),
                ),
                Panel(
                    "Tries again, a second",
                    tuple(
                        Query(
                            rate(f"agent_rft_endpoint_{what}_total", "job, endpoint", ENDPOINT),
                            f"{label} {{{{endpoint}}}} {{{{job}}}}",
                        )
                        for what, label in (
                            *(("retries", "after failures"), ("waits", "after 429 and the like")),
                            ("hedges", "beside a slow one"),
                        )
                    ),
                ),
                Panel(
                    "Waiting for a turn",
                    (
                        Query(
                            quantile(0.95, "agent_rft_endpoint_queue_seconds", "job, endpoint", ENDPOINT),
                            "p95 {{endpoint}} {{job}}",
                        ),
                    ),
                    "s",
                ),
                Panel(
                    "On the wire, and how many may be",
                    (
                        Query(
                            f"sum by (job, endpoint) (agent_rft_endpoint_in_flight{ENDPOINT})", "{{endpoint}} {{job}}"
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
                    "Breaker",
                    (Query(f"max by (job, endpoint) (agent_rft_endpoint_breaker{ENDPOINT})", "{{endpoint}} {{job}}"),),
                    "none",
                    about="0 closed, 1 half open, 2 open: the endpoint is down and only probed.",
                ),
                Panel(
                    "Bytes a second",
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
                    "Answers that say no, by tool, a second",
                    (Query(rate("agent_rft_tool_errors_total", "job, tool"), "{{tool}} {{job}}"),),
                    about="4xx: the model sees them.",
                ),
            ),
        ),
        (
            "Grading",
            (
                Panel(
                    "From a finished rollout to its grade",
                    tuple(
                        Query(quantile(q, "agent_rft_grade_seconds"), f"p{q * 100:g} {{{{job}}}}") for q in (0.5, 0.95)
                    ),
                    "s",
                ),
                Panel(
                    "Grades that were not given, a second",
                    (Query(rate("agent_rft_grade_errors_total", "job, kind"), "{{kind}} {{job}}"),),
                ),
            ),
        ),
    ),
    (JOBS, ("endpoint", 'label_values(agent_rft_endpoint_calls_total{job=~"$job"}, endpoint)')),
    ANNOTATIONS,
)
