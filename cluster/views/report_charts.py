"""The curves of a report as plotly.js data: which metrics share a chart is a table here, and nothing is left empty."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

from trainer.types import Evaluation

Steps = Sequence[Mapping[str, float]]
COLOURS = ("#4c78d8", "#e0803a", "#3aa36f", "#b05fc0", "#c9a227", "#d1495b", "#3aa6b9", "#8a8f98")
"""Told apart by colour-blind eyes too, and seen on light and dark alike."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. `series` are (metric, label); a family's `<...>` takes what was recorded, and labels it."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]
    kind: Literal["lines", "area", "bars"] = "lines"
    ticks: str = ""
    scale: Literal["from zero", "fitted", "log"] = "from zero"


BEHAVIOUR = (
    Chart("Tool calls per rollout", "calls", (("tool/<name>/calls_mean", ""),), "area"),
    Chart(
        "Tokens per rollout",
        "tokens",
        (("rollout_tokens_mean", "all"), ("completion_tokens_mean", "sampled"), ("reasoning_tokens_mean", "thoughts")),
    ),
    Chart("Turns per rollout", "turns", (("turns_mean", "turns"),)),
    Chart("Turns with parallel calls", "of turns with calls", (("parallel_turn_share", "parallel"),), ticks=".0%"),
    Chart(
        "Time per rollout",
        "s",
        (("rollout_wall_s_mean", "wall"), ("rollout_busy_s_mean", "busy"), ("grade_latency_s_mean", "grader")),
    ),
    Chart("Latency of tools", "s", (("tool/<name>/latency_s_mean", ""),)),
    Chart("Scores of the grader's parts", "", (("grader/<name>/score_mean", ""),)),
    Chart("Grades of the held-out grader", "", (("held_out_grade_mean", "held out"),)),
    Chart("Rewards set by guards", "rollouts", (("guard/<name>", ""),), "bars"),
    Chart("Calls refused or failed by the model's doing", "calls", (("call_errors/<kind>", ""),), "bars"),
    Chart("How rollouts ended", "rollouts", (("finish/<reason>", ""),), "bars"),
)
HEALTH = (
    Chart("Discarded rollouts", "rollouts", (("discarded/<reason>", ""),), "bars"),
    Chart(
        "Groups",
        "groups",
        (("groups_trained", "trained"), ("groups_without_signal/<kind>", ""), ("groups_lost", "lost")),
        "bars",
    ),
    Chart("Staleness", "versions", (("staleness_mean", "mean"), ("staleness_max", "largest"))),
    Chart("Generation paused per update", "s", (("sync_pause_s", "pause"), ("sync_total_s", "whole publishing"))),
    Chart(
        "Engine against learner, same weights",
        "nats",
        (("canary_gap", "canary"), ("logprob_gap", "trained tokens")),
        scale="log",
    ),
    Chart(
        "Time per step",
        "s",
        (
            ("time_wait_s", "waiting"),
            ("time_learn_s", "learning"),
            ("time_sync_s", "publishing"),
            ("time_eval_s", "validation"),
        ),
        "bars",
    ),
    Chart("Loss", "", (("loss", "training"), ("full_valid_loss", "validation")), scale="fitted"),
    Chart("Gradient norm", "", (("grad_norm", "before clipping"),)),
    Chart("Entropy", "nats", (("entropy", "entropy"),)),
    Chart(
        "Tokens held back",
        "of trained tokens",
        (("clipped_share", "ratio clipped"), ("importance_capped_share", "weight capped")),
        ticks=".1%",
    ),
)


def figures(charts: Sequence[Chart], steps: Steps) -> list[dict[str, Any]]:
    """{title, data, layout} for plotly.js of each chart that has data."""
    made = []
    for chart in charts:
        series = [pair for metric, label in chart.series for pair in _members(metric, label, steps)]
        if series:
            made.append(_figure(chart, [_curve(chart, steps, *pair) for pair in series]))
    return made


def quality(
    steps: Steps, validations: Sequence[tuple[int, Evaluation]], tests: Sequence[tuple[int, Evaluation]]
) -> list[dict[str, Any]]:
    """Grade and reward in training and validation, and the test file before and after; intervals are 95 %."""
    chart = Chart("Grade and reward", "", (), scale="fitted")
    curves = [
        _curve(chart, steps, name, label) | {"line": {"width": 1.5, "dash": dash}, "opacity": 0.75}
        for name, label, dash in (
            ("train_mean_grade", "train grade", "solid"),
            ("train_mean_reward", "train reward", "dot"),
        )
        if _members(name, label, steps)
    ]
    if validations:
        x = [step for step, _ in validations]
        rewards = {"line": {"dash": "dot", "width": 2}}
        curves.append(_points("validation grade", x, [v for _, v in validations]))
        curves.append({"name": "validation reward", "x": x, "y": [v.reward for _, v in validations]} | rewards)
    if tests:
        x = [step for step, _ in tests]
        diamonds = {"mode": "markers", "marker": {"size": 10, "symbol": "diamond"}}
        curves.append(_points("test grade", x, [test for _, test in tests]) | diamonds)
    return [_figure(chart, curves)] if curves else []


def _points(name: str, x: list[int], evaluations: list[Evaluation]) -> dict[str, Any]:
    half_widths = [0.0 if math.isnan(e.ci95) else e.ci95 for e in evaluations]
    return {
        "name": name,
        "mode": "lines+markers",
        "x": x,
        "y": [e.grade for e in evaluations],
        "error_y": {"type": "data", "array": half_widths, "thickness": 1.2, "width": 4},
        "line": {"width": 2.5},
        "marker": {"size": 7},
    }


def _members(metric: str, label: str, steps: Steps) -> list[tuple[str, str]]:
    """(name, label) of the recorded metrics that a name or a family stands for."""
    pattern = re.compile(re.sub(r"<\w+>", "(.+)", metric) + "$")
    names = sorted({name for step in steps for name in step if pattern.match(name)})
    return [(name, "".join(pattern.findall(name)) if pattern.groups else label) for name in names]


def _curve(chart: Chart, steps: Steps, name: str, label: str) -> dict[str, Any]:
    counted = chart.kind != "lines"  # what is counted or stacked is 0 where it was not recorded
    curve: dict[str, Any] = {
        "name": label,
        "x": [step["step"] for step in steps],
        "y": [step.get(name, 0.0 if counted else None) for step in steps],
    }
    if chart.kind == "bars":
        return curve | {"type": "bar"}
    curve |= {"mode": "lines" if len(steps) > 1 else "markers", "line": {"width": 2}, "connectgaps": True}
    return curve | {"stackgroup": "all"} if chart.kind == "area" else curve


def _figure(chart: Chart, curves: list[dict[str, Any]]) -> dict[str, Any]:
    for curve, colour in zip(curves, cycle(COLOURS), strict=False):
        curve["marker"] = {"color": colour} | curve.get("marker", {})
        if curve.get("type") != "bar":
            curve["line"] = {"color": colour} | curve["line"]
    first, last = min(min(curve["x"]) for curve in curves), max(max(curve["x"]) for curve in curves)
    layout = {
        "barmode": "stack",
        "xaxis": ({"dtick": 1} if last - first < 12 else {})
        | ({"range": [first - 1, last + 1]} if first == last else {}),
        "showlegend": len(curves) > 1 or any("<" in metric for metric, _ in chart.series),
        "yaxis": {
            "tickformat": chart.ticks,
            "type": "log" if chart.scale == "log" else "linear",
            "rangemode": "tozero" if chart.scale == "from zero" else "normal",
        },
    }
    return {"title": chart.title, "unit": chart.unit, "data": curves, "layout": layout}
