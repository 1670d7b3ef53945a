"""The list of metrics fits together."""

from __future__ import annotations

from agent_rft.metrics import METRICS
from agent_rft.metrics.metric_charts import CHARTS


def test_the_charts_of_metrics_are_those_that_the_report_draws() -> None:
    assert {metric.chart for metric in METRICS.values() if metric.chart} == CHARTS.keys()
