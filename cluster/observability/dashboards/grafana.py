"""Builds Grafana's dashboard JSON, as far as our dashboards need it: rows of panels over one Prometheus, and variables.

https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agent_rft.cluster.observability.alerts import Alert

WIDTH, HEIGHT = 24, 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WINDOWS = {
    "window": ("average over", ("5m", "1m", "15m", "1h", "6h")),
    "steps": ("average steps over", ("1h", "15m", "6h", "1d")),
}
"""Variables over which averages are taken: label and choices, the first of which is the default.

What is recorded once a step has its own, longer one: in a window without a step there is nothing to average.
"""
CONSOLE = "http://127.0.0.1:8000"
"""The default of the page's field for the server's URL, at which links to the console start."""
ALERT_COLORS = {"warning": "orange", "critical": "red"}
SCHEMA_VERSION = 39
TAG = "agent-rft"


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and the legend of its series, as a Grafana template over their labels.

    If `now`, only its value at the end of the shown time counts; `dashed` and `color` are how its line is drawn.
    """

    expr: str
    legend: str = "{{job}}"
    now: bool = False
    dashed: bool = False
    color: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """A list to choose from, filled by `query`. `regex` finds the values in what it returns, in the order to show.

    With `every`, several values or all can be chosen, and all are by default; else one, the first by default.
    """

    name: str
    query: str
    regex: str = ""
    every: bool = True

    def of_one(self) -> Variable:
        return replace(self, every=False)


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel, drawn from `queries`, or from the Markdown `text` if its kind is `text`.

    `unit` is Grafana's name of a unit (s, bytes, percentunit, short, none), `width` is in 24ths of the page, `about` is
    shown on hovering over the title, and `empty` instead of "No data". Clicking a value leads to `page` of the console,
    in which `${__value.numeric}` is the value and `${__value.time}` its time in ms. The axis goes up to `top` at least.
    A panel with more than six series has its legend `beside` them: below, it would not fit. It draws the thresholds of
    `alerts` that are numbers as lines.
    """

    title: str
    queries: tuple[Query, ...] = ()
    unit: str = "short"
    kind: Literal["timeseries", "heatmap", "stat", "text"] = "timeseries"
    width: int = 12
    height: int = HEIGHT
    about: str = ""
    text: str = ""
    stacked: bool = False
    empty: str = ""
    page: str = ""
    top: float = 0.01
    beside: bool = False
    alerts: tuple[Alert, ...] = ()

    @property
    def thresholds(self) -> dict[float, str]:
        """Colors of the thresholds that are numbers, in ascending order."""
        found = {each.condition.threshold: ALERT_COLORS[each.severity] for each in self.alerts}
        return {value: found[value] for value in sorted(value for value in found if not isinstance(value, str))}


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Titled rows of panels.

    A legend in `annotations` names the marks on the time axis, of which the first are shown by default. `page` of the
    console is linked at the top.
    """

    name: str
    title: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    variables: tuple[Variable, ...] = ()
    annotations: tuple[Query, ...] = ()
    page: str = ""

    @property
    def uid(self) -> str:
        """The dashboard's id in Grafana."""
        return f"agent-rft-{self.name}"

    @property
    def label(self) -> str:
        """Its name in texts: `Job` of `agent-rft: Job`."""
        return self.title.rpartition(": ")[2]

    @property
    def numbered_panels(self) -> list[tuple[int, Panel]]:
        """All panels with their ids in Grafana. The headers of rows have ids, too."""
        parts = [part for _, panels in self.rows for part in (None, *panels)]
        return [(number, part) for number, part in enumerate(parts, start=1) if part is not None]

    @property
    def named_expressions(self) -> list[tuple[str, str]]:
        """PromQL expressions of the dashboard, with the titles of their panels or the names of the marks."""
        asked = [(panel.title, query.expr) for _, panel in self.numbered_panels for query in panel.queries]
        return asked + [(mark.legend, mark.expr) for mark in self.annotations]


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard in Grafana's JSON model, ready for provisioning."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "links": [
            {"type": "dashboards", "title": "agent-rft", "tags": [TAG], "includeVars": True, "keepTime": True},
            {"type": "link", "icon": "external link", **_link(dashboard.page)},
        ],
        "templating": {"list": _variables(dashboard.variables)},
        "annotations": {"list": [_annotation(*each) for each in zip(dashboard.annotations, _MARKS, strict=False)]},
        "panels": _laid_out(dashboard.rows),
    }


_MARKS = (("green", True), ("purple", False))


def _variables(variables: Iterable[Variable]) -> list[dict[str, Any]]:
    return [
        {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"},
        *map(_variable, variables),
        *(_window(name, label, choices) for name, (label, choices) in WINDOWS.items()),
        {"type": "textbox", "name": "console", "label": "console", "query": CONSOLE},
    ]


def _window(name: str, label: str, choices: Sequence[str]) -> dict[str, Any]:
    options = [{"text": choice, "value": choice, "selected": choice == choices[0]} for choice in choices]
    shown = {"query": ",".join(choices), "options": options, "current": options[0]}
    return {"type": "custom", "name": name, "label": label, **shown}


def _variable(variable: Variable) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "type": "query",
        "name": variable.name,
        "label": variable.name,
        "datasource": DATASOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "definition": variable.query,
        "regex": variable.regex,
        "refresh": 2,  # whenever the time range changes
        "sort": 0 if variable.regex else 1,  # as they come, or by name
        "multi": variable.every,
        "includeAll": variable.every,
    }
    everything = {"allValue": ".+", "current": {"text": ["All"], "value": ["$__all"]}}
    return shown | (everything if variable.every else {"current": {}})


def _link(page: str) -> dict[str, Any]:
    """A link to a page of the console, whose routes begin with `#/`."""
    return {"title": "Console", "url": f"${{console}}/#/{page}", "targetBlank": True}


def _annotation(query: Query, mark: tuple[str, bool]) -> dict[str, Any]:
    color, enabled = mark
    return {
        "name": query.legend,
        "datasource": DATASOURCE,
        "enable": enabled,
        "iconColor": color,
        "expr": query.expr,
        "step": "30s",
        "titleFormat": f"{query.legend}: {{{{job}}}}",
    }


def _laid_out(rows: Sequence[tuple[str, Sequence[Panel]]]) -> list[dict[str, Any]]:
    """Row headers and panels with grid positions, filled from left to right and top to bottom."""
    placed: list[dict[str, Any]] = []
    y = 0
    for title, panels in rows:
        placed.append(
            {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _position(0, y, WIDTH, 1)}
        )
        x, y, bottom = 0, y + 1, y + 1
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, bottom
            placed.append(_panel(panel) | {"gridPos": _position(x, y, panel.width, panel.height)})
            x, bottom = x + panel.width, max(bottom, y + panel.height)
        y = bottom
    return [{"id": number, **panel} for number, panel in enumerate(placed, start=1)]


def _position(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(panel: Panel) -> dict[str, Any]:
    notes = [f"Line: threshold of the alert {each.name} ({each.severity})." for each in panel.alerts]
    about = "\n\n".join(filter(None, (panel.about, *notes)))
    shown: dict[str, Any] = {"type": panel.kind, "title": panel.title, "description": about}
    if panel.kind == "text":
        return shown | {"options": {"mode": "markdown", "content": panel.text}}
    defaults: dict[str, Any] = {"unit": panel.unit, "custom": _drawn(panel), "color": {"mode": "palette-classic"}}
    defaults |= {"decimals": 1} if panel.unit == "sci" else {}
    defaults |= {"noValue": panel.empty} if panel.empty else {}
    defaults |= {"links": [_link(panel.page)]} if panel.page else {}
    steps = [{"color": color, "value": value} for value, color in panel.thresholds.items()]
    base = {"color": "transparent", "value": None}  # what Grafana needs below the first one
    defaults |= {"thresholds": {"mode": "absolute", "steps": [base, *steps]}} if steps else {}
    targets = {chr(ord("A") + number): query for number, query in enumerate(panel.queries)}
    return shown | {
        "datasource": DATASOURCE,
        "targets": [_target(ref, query, panel.kind) for ref, query in targets.items()],
        "fieldConfig": {
            "defaults": defaults,
            "overrides": [
                {"matcher": _named(ref), "properties": properties}
                for ref, query in targets.items()
                if (properties := _line_of(query))
            ],
        },
        "options": _OPTIONS[panel.kind] | ({"legend": _BESIDE} if panel.beside else {}),
    }


def _target(ref: str, query: Query, kind: str) -> dict[str, Any]:
    return {
        "refId": ref,
        "datasource": DATASOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": "heatmap" if kind == "heatmap" else "time_series",
        "instant": query.now,
        "range": not query.now,
    }


def _named(ref: str) -> dict[str, str]:
    return {"id": "byFrameRefID", "options": ref}


def _line_of(query: Query) -> list[dict[str, Any]]:
    dashed = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}}
    color = {"id": "color", "value": {"mode": "fixed", "fixedColor": query.color}}
    return [dashed] * query.dashed + [color] * bool(query.color)


def _drawn(panel: Panel) -> dict[str, Any]:
    if panel.kind != "timeseries":
        return {}
    stacking = {"mode": "normal" if panel.stacked else "none"}
    # spanNulls is in ms: a paused job leaves a gap, successive steps do not.
    return {
        "axisSoftMin": 0,
        **({"axisSoftMax": max([panel.top, *panel.thresholds])} if panel.unit in _COUNTED else {}),
        **({"thresholdsStyle": {"mode": "line"}} if panel.thresholds else {}),
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stacked else 5,
        "spanNulls": 120_000,
        "stacking": stacking,
    }


_COUNTED = ("short", "none", "percentunit")
"""Units in which Grafana draws an axis up to 100 where all values are 0."""
_BESIDE = {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull"]}
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "calcs": ["lastNotNull"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "heatmap": {"calculate": False, "yAxis": {"axisPlacement": "left"}, "color": {"mode": "scheme", "scheme": "Blues"}},
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "value_and_name",
        "colorMode": "none",
        "graphMode": "none",
        "justifyMode": "auto",
        "wideLayout": False,
        "text": {"titleSize": 14, "valueSize": 36},
    },
}
