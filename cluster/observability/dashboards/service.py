"""Service dashboard: requests of the API server, its job queue, and its served models."""

from __future__ import annotations

from agent_rft.cluster.observability.alerts import API_REQUESTS, SERVER_ERROR, api_up_expr, find_alert
from agent_rft.cluster.observability.dashboards.grafana import Dashboard, Panel, Query
from agent_rft.cluster.observability.dashboards.queries import WINDOW, panel, query_max, query_quantile, query_sum
from agent_rft.cluster.observability.dashboards.third_party_panels import SERVED
from agent_rft.cluster.observability.promql import rate, samples


def _request_rate(*matchers: str, by: tuple[str, ...]) -> str:
    return rate(samples(API_REQUESTS, *matchers, part="count"), WINDOW, by)


_ALL = f"sum({_request_rate(by=('route',))})"
_ERRORS = f"(sum({_request_rate(SERVER_ERROR, by=('route',))}) or vector(0)) / {_ALL}"


def _stat_panel(title: str, expr: str, *, unit: str = "none", about: str) -> Panel:
    return Panel(title, (Query(expr, " "),), unit, "stat", 6, height=4, about=about, no_data_text="0")


SERVICE_DASHBOARD = Dashboard(
    "service",
    "agent-rft: Service",
    (
        (
            "Now",
            (
                _stat_panel("Running jobs", query_sum("api_jobs/running", ("state",)).expr, about="Jobs that train."),
                _stat_panel(
                    "Queued jobs", query_sum("api_jobs/queued", ("state",)).expr, about="Jobs that wait for resources."
                ),
                _stat_panel(
                    "Requests per second",
                    _ALL,
                    unit="short",
                    about="All requests to the API, including requests to models.",
                ),
                _stat_panel(
                    "Server errors",
                    _ERRORS,
                    unit="percentunit",
                    about="Share of requests with a 5xx status.",
                ),
            ),
        ),
        (
            "API",
            (
                Panel(
                    "API requests per second",
                    (Query(_request_rate(by=("route", "status")), "{{status}} {{route}}"),),
                ),
                panel(query_quantile(0.95, API_REQUESTS, ("route",))),
                Panel(
                    "Share of server errors",
                    (Query(_ERRORS, "5xx status"),),
                    "percentunit",
                    alerts=(find_alert("ServerErrors"),),
                ),
                panel(query_max("api_jobs/<state>", ("state",)), min_axis_max=1, alerts=("QueueStands",)),
                panel(query_max("api_queue_age_s", ("process",)), alerts=("QueuedForHours",)),
                Panel(
                    "API running",
                    (Query(api_up_expr(), "API"),),
                    "none",
                    min_axis_max=1,
                    about="1: a replica of the API is running. 0: the last replica is gone.",
                    alerts=(find_alert("ApiDown"),),
                ),
            ),
        ),
        ("Served models", SERVED),
    ),
    console_page="jobs",
)
