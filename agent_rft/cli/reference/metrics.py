"""Where each metric is shown: panels, alerts, the report, the live view, the API."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent_rft.cluster.observability.alerts import ALERTS
from agent_rft.cluster.observability.files import DASHBOARDS
from agent_rft.metrics import METRICS, prometheus_name
from agent_rft.metrics.charts import CHARTS

_SUFFIXES = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "file": ()}
KINDS = {
    "gauge": "the last value",
    "counter": "a sum since the process started",
    "histogram": "observations by bucket, their sum and their number",
    "file": "nothing, it is only in metrics.jsonl",
}
"""What Prometheus receives of a metric, by its kind."""


def sample_names(entry: str) -> tuple[str, ...]:
    """The names of a metric's samples in Prometheus; none if it is only in the file."""
    return tuple(prometheus_name(entry) + suffix for suffix in _SUFFIXES[METRICS[entry].kind])


def shown_in(entry: str) -> Iterator[str]:
    """The places that show a metric, as phrases."""
    metric, names = METRICS[entry], set(sample_names(entry))
    for dashboard in DASHBOARDS:
        for _, panels in dashboard.rows:
            for panel in panels:
                if any(names & _names_in(query.expr) for query in panel.queries):
                    yield f"{dashboard.title.removeprefix('agent-rft: ')} dashboard, {panel.title!r}"
    for alert in ALERTS:
        if names & _names_in(alert.expr):
            yield f"alert {alert.name}"
    if metric.chart:
        yield f"report, {CHARTS[metric.chart].title!r}"
    if metric.in_live_view:
        yield f"live view, {metric.label!r}"
    if metric.message:
        yield f"API's metrics events, {metric.message!r}"


def _names_in(expr: str) -> set[str]:
    return set(re.findall(r"\bagent_rft_\w+", expr))
