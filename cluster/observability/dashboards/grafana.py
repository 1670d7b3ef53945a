"""Builds Grafana's dashboard JSON, as far as our dashboards need it: rows of panels over one Prometheus, and variables.

https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

WIDTH, HEIGHT = 24, 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WINDOWS = {
    "window": ("average over", ("5m", "1m", "15m", "1h", "6h")),
    "steps": ("average steps over", ("1h", "15m", "6h", "1d")),
}
"""Variables over which averages are taken: label and choices, the first of which is the default.

What is recorded once a step has its own, longer one: in a window without a step there is nothing to average.
"""
SCHEMA_VERSION = 39
TAG = "agent-rft"


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and the legend of its series, as a Grafana template over their labels."""

    expr: str
    legend: str = "{{job}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel, drawn from `queries`, or from the Markdown `text` if its kind is `text`.

    `unit` is Grafana's name of a unit (s, bytes, percentunit, short, none), `width` is in 24ths of the page, and
    `about` is shown on hovering over the title.
    """

    title: str
    queries: tuple[Query, ...] = ()
    unit: str = "short"
    kind: Literal["timeseries", "heatmap", "text"] = "timeseries"
    width: int = 12
    about: str = ""
    text: str = ""
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Titled rows of panels.

    `variables` are pairs of a name and the query for its values. A legend in `annotations` names the marks on the time
    axis.
    """

    name: str
    title: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    variables: tuple[tuple[str, str], ...] = ()
    annotations: tuple[Query, ...] = ()

    @property
    def expressions(self) -> list[str]:
        """All PromQL expressions of the dashboard."""
        panels = [panel for _, panels in self.rows for panel in panels]
        return [q.expr for panel in panels for q in panel.queries] + [q.expr for q in self.annotations]


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard in Grafana's JSON model, ready for provisioning."""
    return {
        "uid": f"agent-rft-{dashboard.name}",
        "title": dashboard.title,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "links": [{"type": "dashboards", "title": "agent-rft", "tags": [TAG], "includeVars": True, "keepTime": True}],
        "templating": {"list": _variables(dashboard.variables)},
        "annotations": {
            "list": [_annotation(query, color) for query, color in zip(dashboard.annotations, _COLORS, strict=False)]
        },
        "panels": _laid_out(dashboard.rows),
    }


_COLORS = ("green", "purple")


def _variables(queries: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"},
        *(_variable(name, query) for name, query in queries),
        *(_window(name, label, choices) for name, (label, choices) in WINDOWS.items()),
    ]


def _window(name: str, label: str, choices: Sequence[str]) -> dict[str, Any]:
    options = [{"text": choice, "value": choice, "selected": choice == choices[0]} for choice in choices]
    shown = {"query": ",".join(choices), "options": options, "current": options[0]}
    return {"type": "custom", "name": name, "label": label, **shown}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "type": "query",
        "name": name,
        "label": name,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,  # whenever the time range changes
        "sort": 2,  # newest runs first: their names start with the time
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _annotation(query: Query, color: str) -> dict[str, Any]:
    return {
        "name": query.legend,
        "datasource": DATASOURCE,
        "enable": True,
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
        x, y = 0, y + 1
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + HEIGHT
            placed.append(_panel(panel) | {"gridPos": _position(x, y, panel.width, HEIGHT)})
            x += panel.width
        y += HEIGHT
    return [{"id": number, **panel} for number, panel in enumerate(placed, start=1)]


def _position(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(panel: Panel) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": panel.kind, "title": panel.title, "description": panel.about}
    if panel.kind == "text":
        return shown | {"options": {"mode": "markdown", "content": panel.text}}
    heatmap = panel.kind == "heatmap"
    return shown | {
        "datasource": DATASOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": DATASOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "format": "heatmap" if heatmap else "time_series",
            }
            for number, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": _drawn(panel)}, "overrides": []},
        "options": _OPTIONS[panel.kind],
    }


def _drawn(panel: Panel) -> dict[str, Any]:
    if panel.kind != "timeseries":
        return {}
    stacking = {"mode": "normal" if panel.stacked else "none"}
    # spanNulls is in ms: a paused job leaves a gap, successive steps do not.
    return {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 5, "spanNulls": 120_000, "stacking": stacking}


_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "heatmap": {"calculate": False, "yAxis": {"axisPlacement": "left"}, "color": {"mode": "scheme", "scheme": "Blues"}},
}
