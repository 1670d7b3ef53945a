"""Type of a metric's registry entry, formats of values and buckets of histograms."""

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
        help: Noun phrase, shown by Prometheus and as the description of panels.
        kind: Value that Prometheus receives: the last value, the sum of recorded values, a histogram with `buckets`, or
            nothing (`file`: only in metrics.jsonl).
        live: Whether the measuring process records it as it happens; the step's value is then only for the file.
        short: Name in log lines; default: `label`.
        form: Format of a value; default: by `unit`.
        chart: Key in CHARTS of the chart that shows it.
        series: Name next to other metrics of a chart or panel; members of a family are named by placeholders instead.
        message: Name in the message of the API's metrics events; empty if it is not shown there.
        csv: Whether it is one of the first columns of the result file.
        better: 1 if higher is better, -1 if lower is better, else 0.
    """

    label: str
    unit: str
    help: str
    kind: Kind = "gauge"
    buckets: tuple[float, ...] = ()
    live: bool = False
    short: str = ""
    form: str = ""
    chart: str = ""
    series: str = ""
    in_live_view: bool = False
    message: str = ""
    csv: bool = False
    better: int = 0

    @property
    def pattern(self) -> str:
        """Format of values for `str.format`."""
        return self.form or FORMS.get(self.unit, "{:.3f}")

    def format(self, value: float) -> str:
        """Return `value` with its unit, as in tables."""
        return self.pattern.format(value)


FORMS = {
    **dict.fromkeys(("tokens", "rollouts", "groups", "characters", "steps"), "{:,.0f}"),
    **dict.fromkeys(("calls", "turns", "versions"), "{:.2f}"),
    "share": "{:.0%}",
    "s": "{:.2f} s",
}
"""Formats of values by unit; the default has three decimals."""
