"""Charts of a report as plotly.js data; `agent_rft.metrics` defines which metrics share a chart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import fmean
from typing import Any, Literal

from agent_rft.metrics import METRICS
from agent_rft.metrics.metric_charts import CHARTS, Chart
from agent_rft.types import Evaluation

Steps = Sequence[Mapping[str, float]]
CHART_COLORS = ("#4c78d8", "#e0803a", "#3aa36f", "#b05fc0", "#c9a227", "#d1495b", "#3aa6b9", "#8a8f98")
"""Colors of curves, distinguishable for color-blind readers, and visible on light and dark backgrounds."""


def section_figures(section: Literal["agent", "training"], steps: Steps) -> list[dict[str, Any]]:
    """Return a plotly.js figure (title, unit, data, layout, summary) for each chart of a section; omit empty charts."""
    made = []
    for key, chart in CHARTS.items():
        charted = {name: metric for name, metric in METRICS.items() if metric.chart == key}
        series = [pair for name, metric in charted.items() for pair in _matching_metrics(name, metric.series, steps)]
        if series and chart.section == section:
            is_family = any("<" in name for name in charted)
            made.append(_figure(chart, [_curve(chart, steps, *pair) for pair in series], legend=is_family))
    return made


def quality_figures(
    steps: Steps, validations: Sequence[tuple[int, Evaluation]], tests: Sequence[tuple[int, Evaluation]]
) -> list[dict[str, Any]]:
    """Return the chart of grades and rewards in training, validation and test, with 95 % confidence intervals."""
    reads = "if only the train curve rises, the model memorizes rows; error bars are 95 % confidence intervals"
    chart = Chart("Grade and reward", reads, scale="fitted")
    curves = [
        _curve(chart, steps, name, METRICS[name].label) | {"line": {"width": 1.5, "dash": dash}, "opacity": 0.75}
        for name, dash in (("train_mean_grade", "solid"), ("train_mean_reward", "dot"), ("held_out_grade_mean", "dash"))
        if _matching_metrics(name, "", steps)
    ]
    if validations:
        x = [step for step, _ in validations]
        rewards = {"line": {"dash": "dot", "width": 2}}
        curves.append(_evaluation_curve(METRICS["full_valid_mean_grade"].label, x, [v for _, v in validations]))
        curves.append(
            {"name": METRICS["full_valid_mean_reward"].label, "x": x, "y": [v.reward for _, v in validations]} | rewards
        )
    if tests:
        x = [step for step, _ in tests]
        diamonds = {"mode": "markers", "marker": {"size": 10, "symbol": "diamond"}}
        curves.append(_evaluation_curve("test grade", x, [test for _, test in tests]) | diamonds)
    measured = sorted(curves, key=lambda curve: curve["name"] != METRICS["full_valid_mean_grade"].label)
    return [_figure(chart, curves) | {"summary": _describe_curves(chart, measured[:1])}] if curves else []


def _evaluation_curve(name: str, x: list[int], evaluations: list[Evaluation]) -> dict[str, Any]:
    found = [e.get_interval("grade") for e in evaluations]
    above = [0.0 if interval is None else interval.high - interval.mean for interval in found]
    below = [0.0 if interval is None else interval.mean - interval.low for interval in found]
    return {
        "name": name,
        "mode": "lines+markers",
        "x": x,
        "y": [e.grade for e in evaluations],
        "error_y": {
            "type": "data",
            "array": above,
            "arrayminus": below,
            "symmetric": False,
            "thickness": 1.2,
            "width": 4,
        },
        "line": {"width": 2.5},
        "marker": {"size": 7},
    }


def _matching_metrics(metric: str, label: str, steps: Steps) -> list[tuple[str, str]]:
    """Return (name, label) of the recorded metrics that match `metric`.

    If `metric` is the name of a metric, the returned label is `label`. If `metric` is a family, such as
    `tool/<tool>/errors`, the label is the text in place of the placeholder: here, the tool's name.
    """
    pattern = re.compile(re.sub(r"<\w+>", "(.+)", metric) + "$")
    names = sorted({name for step in steps for name in step if pattern.match(name)})
    return [(name, "".join(pattern.findall(name)) if pattern.groups else label) for name in names]


def _curve(chart: Chart, steps: Steps, name: str, label: str) -> dict[str, Any]:
    counted = chart.kind != "lines"  # missing counts are 0
    curve: dict[str, Any] = {
        "name": label,
        "x": [step["step"] for step in steps],
        "y": [step.get(name, 0.0 if counted else None) for step in steps],
    }
    if chart.kind == "bars":
        return curve | {"type": "bar"}
    curve |= {"mode": "lines" if len(steps) > 1 else "markers", "line": {"width": 2}, "connectgaps": True}
    return curve | {"stackgroup": "all"} if chart.kind == "area" else curve


def _figure(chart: Chart, curves: list[dict[str, Any]], *, legend: bool = False) -> dict[str, Any]:
    """Return the plotly.js figure of a chart. If `legend`, the legend is shown even for a single curve."""
    for curve, color in zip(curves, cycle(CHART_COLORS), strict=False):
        curve["marker"] = {"color": color} | curve.get("marker", {})
        if curve.get("type") != "bar":
            curve["line"] = {"color": color} | curve["line"]
    first, last = min(min(curve["x"]) for curve in curves), max(max(curve["x"]) for curve in curves)
    layout = {
        "barmode": "stack",
        "xaxis": ({"dtick": 1} if last - first < 12 else {})
        | ({"range": [first - 1, last + 1]} if first == last else {}),
        "showlegend": legend or len(curves) > 1,
        "yaxis": {
            "tickformat": chart.tick_format,
            "type": "log" if chart.scale == "log" else "linear",
            "rangemode": "tozero" if chart.scale == "from zero" else "normal",
        },
    }
    return {
        "title": chart.title,
        "unit": chart.unit,
        "data": curves,
        "layout": layout,
        "summary": _describe_curves(chart, curves),
    }


def _describe_curves(chart: Chart, curves: Sequence[Mapping[str, Any]]) -> str:
    """Describe a chart in one sentence: how to read it and, for a single or stacked curve, the first and last value."""
    stacked = chart.kind == "area"
    points = [
        y
        for y in (map(sum, zip(*(c["y"] for c in curves), strict=True)) if stacked else curves[0]["y"])
        if y is not None
    ]
    went = ""
    if len(points) > 1 and (stacked or len(curves) == 1):
        part = max(1, len(points) // 5)  # a single step is too noisy
        form = "{:.0%}" if "%" in chart.tick_format else "{:.3g}"
        name = f"{curves[0]['name']} from " if len(curves) == 1 and chart.scale == "fitted" else "from "
        first, last = (form.format(fmean(some)) for some in (points[:part], points[-part:]))
        went = f"{name}{first} to {last}: " if first != last else ""
    sentence = f"{went}{chart.explanation}."
    return sentence[0].upper() + sentence[1:]
