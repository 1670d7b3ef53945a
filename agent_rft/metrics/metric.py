"""Type of a metric in the registry, formats of values, and buckets of histograms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram", "file"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
LONG_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
GRADES = (-1.0, -0.5, *(i / 10 for i in range(11)))
CALLS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
TOKENS = tuple(16.0 * 2**i for i in range(14))
BYTES = tuple(10.0**i for i in range(5, 13))


@dataclass(frozen=True, slots=True)
class Metric:
    """One entry of the registry: what is measured, how a value is formatted, and where it is shown.

    Attributes:
        label: Name in tables, and title of a panel.
        help: Meaning as a noun phrase; shown by Prometheus and as the description of panels.
        kind: Type in Prometheus: `gauge` is the last value, `counter` the sum of all recorded values, and `histogram`
            their distribution over `buckets`. A metric of the kind `file` is only in metrics.jsonl.
        is_live: Whether a process exports the metric as soon as it is measured. If so, it is not exported again with
            the step's metrics.
        short_label: Name in log lines; by default `label`.
        value_format: Format of a value; by default the format of the unit.
        chart: Key in CHARTS of the chart that shows the metric; empty if no chart shows it.
        series: Name in a chart or panel that shows several metrics.
        message: Name in the message of the API's metrics events; empty if the message omits the metric.
        in_result_columns: Whether the metric is one of the first columns of the result file.
        better_direction: 1 if higher is better, -1 if lower is better, else 0.
    """

    label: str
    unit: str
    help: str
    kind: Kind = "gauge"
    buckets: tuple[float, ...] = ()
    is_live: bool = False
    short_label: str = ""
    value_format: str = ""
    chart: str = ""
    series: str = ""
    in_live_view: bool = False
    message: str = ""
    in_result_columns: bool = False
    better_direction: int = 0

    @property
    def pattern(self) -> str:
        """Format string of values, for `str.format`."""
        return self.value_format or FORMS.get(self.unit, "{:.3f}")

    def format(self, value: float) -> str:
        """Return `value` as text in the metric's format, as tables show it."""
        return self.pattern.format(value)


FORMS = {
    **dict.fromkeys(("tokens", "rollouts", "groups", "characters", "steps"), "{:,.0f}"),
    **dict.fromkeys(("calls", "turns", "versions"), "{:.2f}"),
    "share": "{:.0%}",
    "s": "{:.2f} s",
}
"""Formats of values by unit; values of other units have three decimals."""
