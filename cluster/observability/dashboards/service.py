"""The API server: its requests, its queue of jobs, the models that it serves."""

from __future__ import annotations

from cluster.observability.dashboards.grafana import Dashboard, Panel, Query
from cluster.observability.dashboards.libraries import SERVED
from cluster.observability.dashboards.queries import WINDOW, max_of, panel, quantile_of, sum_of
from cluster.observability.promql import rate, samples

API_REQUEST_S = "api_request_s/<status>/<method>/<route>"
ERRORS = 'status=~"5.."'


def _requests(*matchers: str, by: tuple[str, ...]) -> str:
    return rate(samples(API_REQUEST_S, *matchers, part="count"), WINDOW, by)


def _figure(title: str, expr: str, *, unit: str = "none", about: str) -> Panel:
    return Panel(title, (Query(expr, " "),), unit, "stat", 6, height=4, about=about, empty="0")


SERVICE_DASHBOARD = Dashboard(
    "service",
    "agent-rft: Service",
    (
        (
            "Now",
            (
                _figure("Running jobs", sum_of("api_jobs/running", ("state",)).expr, about="Jobs that train."),
                _figure(
                    "Queued jobs", sum_of("api_jobs/queued", ("state",)).expr, about="Jobs that wait for resources."
                ),
                _figure(
                    "Requests per second",
                    f"sum({_requests(by=('route',))})",
                    unit="short",
                    about="All requests to the API, those of models too.",
                ),
                _figure(
                    "Server errors",
                    f"(sum({_requests(ERRORS, by=('route',))}) or vector(0)) / sum({_requests(by=('route',))})",
                    unit="percentunit",
                    about="Share of requests with a status from 500.",
                ),
            ),
        ),
        (
            "API",
            (
                Panel(
                    "API requests per second",
                    (Query(_requests(by=("route", "status")), "{{status}} {{route}}"),),
                    width=8,
                ),
                panel(quantile_of(0.95, API_REQUEST_S, ("route",)), width=8),
                panel(max_of("api_jobs/<state>", ("state",)), width=8, top=1),
            ),
        ),
        ("Served models", SERVED),
    ),
    page="jobs",
)
