"""The type of an entry of the list of metrics, the forms of its values, and the buckets of histograms."""

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
    """One entry of the list: what is measured, how a value is written, and where it is shown.

    `label` names it in tables and as the title of a panel, `short` (or `label`) in log lines. `help` is a noun phrase,
    shown by Prometheus and as the description of panels. `form` formats a value, by default according to its `unit`.
    `chart` is the key in CHARTS of the chart that draws it. `series` is its name beside other metrics of the same chart
    or panel; members of a family are named by their placeholders instead. `message` is its name in the message of the
    API's metrics events, if it is shown there, and `csv` says that it is one of the first columns of the result file.
    `better` is 1 if more is better, -1 if less is, else 0.

    By its `kind`, Prometheus receives the last value, the sum of the recorded values, a histogram with these `buckets`,
    or nothing (`file`: only in metrics.jsonl). If `live`, the process that measures it records it as it happens, and
    its value in a step's line is only for the file.
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
        """The format of values, for `str.format`."""
        return self.form or FORMS.get(self.unit, "{:.3f}")

    def format(self, value: float) -> str:
        """The value with its unit, as tables show it."""
        return self.pattern.format(value)


FORMS = {
    **dict.fromkeys(("tokens", "rollouts", "groups", "characters", "steps"), "{:,.0f}"),
    **dict.fromkeys(("calls", "turns", "versions"), "{:.2f}"),
    "share": "{:.0%}",
    "s": "{:.2f} s",
}
"""The formats of values by unit; the default has three decimals."""
