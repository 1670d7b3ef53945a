"""Builders of queries and panels; titles, units and descriptions come from the metrics in `agent_rft.metrics`.

    panel(gauge("grad_norm"))    # title "Gradient norm", description "Norm of the gradient before clipping."
    panel(gauge("loss"), gauge("full_valid_loss"), title="Loss")    # legends "train", "validation"

A query returns one series for each combination of the labels in `by`. By default, `by` contains `job` and the
placeholders in the metric's name. The dashboard's viewer selects `$job`, `$endpoint` and the averaging windows:
`$steps` for metrics that are recorded once per step, `$window` for all others. Legends contain the job only if the
dashboard shows several jobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from agent_rft.cluster.observability.alerts import Alert, find_alert
from agent_rft.cluster.observability.dashboards.grafana import ALERT_COLORS, Panel, Query, Variable
from agent_rft.cluster.observability.promql import Part, rate, samples
from agent_rft.metrics import METRICS, find_metric
from agent_rft.metrics.metric import Metric

Labels = tuple[str, ...]
WINDOW, STEPS = "$window", "$steps"
CHOSEN = {"job": 'job=~"$job"', "endpoint": 'endpoint=~"$endpoint"'}
"""PromQL matchers for the jobs and endpoints that the viewer selected in the dashboard, by label."""

_STARTED = 'max_over_time(process_start_time_seconds{process="driver"}[$__range])'
_DRIVERS = f"last_over_time({samples('disk_total_bytes')}[$__range])"
JOBS = Variable(
    "job",
    f"query_result(sort_desc(max by (job) ({_STARTED} and on (job, process) {_DRIVERS})))",
    regex='/job="([^"]+)"/',
)
"""Jobs in the shown time range, the most recently started first."""
ENDPOINTS = Variable("endpoint", f"label_values({samples('endpoint/<endpoint>/calls', CHOSEN['job'])}, endpoint)")
ANNOTATIONS = (
    Query(f"increase({samples('time_checkpoint_s', CHOSEN['job'], part='count')}[1m]) > 0", "checkpoint"),
    Query(f"changes({samples('version', CHOSEN['job'])}[1m]) > 0", "weight update"),
)

_UNITS = {"s": "s", "bytes": "bytes", "share": "percentunit"} | dict.fromkeys(
    ("", "nats", "steps", "engines", "jobs"), "none"
)
"""Grafana's unit for each of our units. All other units are counts and use `short`, which abbreviates thousands."""


@dataclass(frozen=True, slots=True)
class MetricQuery:
    """PromQL expression for one metric, with display options.

    `title` is the title of a panel that shows only this metric. `series` is the name of the metric in a panel with
    several metrics. `statistic`, such as `p95`, is part of every legend. `unit` is the name of a unit in Grafana.
    """

    expr: str
    metric: Metric
    by: Labels
    title: str
    unit: str
    series: str
    statistic: str = ""

    def legend(self, series: str = "", *, many_jobs: bool = False) -> str:
        """Return the legend template: statistic, series and labels. The job comes last, and only if `many_jobs`."""
        labels = [label for label in reversed(self.by) if label != "job" or many_jobs]
        if not series and not labels:
            series = self.series or self.title
        parts = (self.statistic, series, *(f"{{{{{label}}}}}" for label in labels))
        return " ".join(part for part in parts if part)


def query_gauge(name: str, by: Labels = (), *, series: str = "") -> MetricQuery:
    """Build a query for the recorded values of a gauge, without aggregation."""
    found = _ListedMetric(name, by)
    return found.query(found.samples(), series=series)


def query_sum(name: str, by: Labels = ()) -> MetricQuery:
    found = _ListedMetric(name, by)
    return found.query(f"sum by ({', '.join(found.by)}) ({found.samples()})")


def query_max(name: str, by: Labels = ()) -> MetricQuery:
    found = _ListedMetric(name, by)
    return found.query(f"max by ({', '.join(found.by)}) ({found.samples()})")


def query_mean(name: str, by: Labels = (), *, series: str = "", window: str = "") -> MetricQuery:
    """Build a query for the mean of a histogram's observations in the window.

    Pass STEPS as `window` for a live histogram with few observations, because the default WINDOW may contain none.
    """
    found = _ListedMetric(name, by, window)
    return found.query(f"{found.rate('sum')} / {found.rate('count')}", series=series)


def query_quantile(q: float, name: str, by: Labels = ()) -> MetricQuery:
    """Build a query for the `q` quantile of a histogram's observations in the window."""
    found = _ListedMetric(name, by)
    buckets = rate(found.samples("bucket"), found.window, (*found.by, "le"))
    return found.query(f"histogram_quantile({q:g}, {buckets})", statistic=f"p{q * 100:g}")


def build_rate_query(
    name: str, by: Labels = (), *, per: Literal["second", "minute"] = "second", where: str = ""
) -> MetricQuery:
    """Build a query for the growth of a counter per second or minute.

    `where` is an additional label matcher, such as `status="500"`.

    Raises:
        ValueError: The metric is not a counter.
    """
    found = _ListedMetric(name, by, where=where)
    if found.metric.kind != "counter":
        raise ValueError(f"{name} is a {found.metric.kind}, not a counter: it has no rate")
    expr = f"60 * {found.rate()}" if per == "minute" else found.rate()
    unit = "Bps" if found.metric.unit == "bytes" else "short"
    return found.query(expr, title=f"{found.metric.label} per {per}", unit=unit)


def query_increase(name: str, by: Labels = (), *, series: str = "") -> MetricQuery:
    """Build a query for the growth of a counter, or of a histogram's count, in 15 minutes."""
    found = _ListedMetric(name, by)
    counted = found.samples("count" if found.metric.kind == "histogram" else None)
    expr = f"sum by ({', '.join(found.by)}) (increase({counted}[15m]))"
    return found.query(expr, title=f"{found.metric.label} in 15 minutes", unit="short", series=series)


def query_time_share(name: str, by: Labels = (), *, window: str = "") -> MetricQuery:
    """Build a query for the sum of a histogram's durations in the window, divided by the length of the window."""
    found = _ListedMetric(name, by, window)
    return found.query(found.rate("sum"), unit="percentunit")


def query_distribution(name: str) -> MetricQuery:
    """Build a heatmap query: observations in the window by histogram bucket, summed over the selected jobs."""
    found = _ListedMetric(name, ("le",))
    buckets = samples(name, CHOSEN["job"], part="bucket")
    return found.query(f"sum by (le) (increase({buckets}[{found.window}]))", title=f"{found.metric.label} distribution")


def query_ratio(part: MetricQuery, whole: MetricQuery, *, many_jobs: bool = False) -> Query:
    return Query(f"{part.expr} / {whole.expr}", part.legend(many_jobs=many_jobs))


def panel(
    *queries: MetricQuery,
    title: str = "",
    about: str = "",
    unit: str = "",
    many_jobs: bool = False,
    dashed: tuple[MetricQuery, ...] = (),
    alerts: tuple[str, ...] = (),
    **options: Any,
) -> Panel:
    """Create a panel whose title, unit and description come from its metrics.

    A panel with several metrics needs a `title`; its legend and description name each metric by its `series`.

    - `about`: Text before the description.
    - `unit`: Replaces the unit of the metrics.
    - `many_jobs`: Whether the dashboard shows several jobs.
    - `dashed`: Further queries, drawn as dashed lines.
    - `alerts`: Names of the alerts whose thresholds the panel draws.
    - `options`: Other fields of Panel.

    Raises:
        ValueError: The queries have different units, or different titles and `title` is missing.
    """
    shown = (*queries, *dashed)
    titles, units = {query.title for query in shown}, {query.unit for query in shown}
    if len(units) > 1 or (len(titles) > 1 and not title):
        raise ValueError(
            f"the panel {title!r} shows {sorted(titles)} in {sorted(units)}; give it a title and a single unit"
        )
    metrics = {query.metric: query.series or query.metric.label for query in shown}
    shared = len(metrics) > 1
    helps = [(f"- {series}: " if shared else "") + _sentence(metric.help) for metric, series in metrics.items()]
    found = tuple(map(find_alert, alerts))
    return Panel(
        title or _capitalized(titles.pop()),
        (
            *(
                Query(
                    query.expr,
                    query.legend(query.series if shared else "", many_jobs=many_jobs),
                    dashed=query in dashed,
                )
                for query in shown
            ),
            *(_threshold(each, many_jobs=many_jobs) for each in found if isinstance(each.condition.threshold, str)),
        ),
        unit or units.pop(),
        about="\n\n".join(filter(None, (about, "\n".join(helps)))),
        alerts=found,
        **options,
    )


def _threshold(shown: Alert, *, many_jobs: bool) -> Query:
    """Return the query that draws an alert's threshold. The threshold is a PromQL expression, not a number."""
    chosen = f"({shown.condition.threshold}) and on (job) {samples('disk_total_bytes', CHOSEN['job'])}"
    legend = f"alert {shown.name} {{{{job}}}}" if many_jobs else f"alert {shown.name}"
    return Query(chosen, legend, dashed=True, color=ALERT_COLORS[shown.severity])


class _ListedMetric:
    """A metric from `agent_rft.metrics`, plus the labels and the averaging window that a query uses for the metric."""

    def __init__(self, name: str, by: Labels, window: str = "", where: str = "") -> None:
        found = find_metric(name)
        if found is None:
            raise KeyError(name)
        self.name, self.metric = name, METRICS[found[0]]
        self.window = window or (WINDOW if self.metric.is_live else STEPS)
        self.by = by or ("job", *re.findall(r"<(\w+)>", name))
        self._matchers = [*(CHOSEN[label] for label in self.by if label in CHOSEN), *filter(None, (where,))]

    def samples(self, part: Part | None = None) -> str:
        return samples(self.name, *self._matchers, part=part)

    def rate(self, part: Part | None = None) -> str:
        return rate(self.samples(part), self.window, self.by)

    def query(
        self, expr: str, *, title: str = "", unit: str = "", series: str = "", statistic: str = ""
    ) -> MetricQuery:
        metric = self.metric
        metric_unit = "sci" if metric.pattern.endswith("e}") else _UNITS.get(metric.unit, "short")
        default = metric.label if self.by == ("job",) else ""  # other labels name the series
        shown_series = series or metric.series or default
        return MetricQuery(expr, metric, self.by, title or metric.label, unit or metric_unit, shown_series, statistic)


def _sentence(text: str) -> str:
    return _capitalized(text) + "."


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
