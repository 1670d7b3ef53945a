"""Grafana's dashboard JSON, of what our dashboards need: rows of panels over one Prometheus, and variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

WIDTH, HEIGHT = 24, 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WINDOWS = ("5m", "1m", "15m", "1h", "6h")
"""Over which averages go; the first one is the default."""
SCHEMA_VERSION = 39
TAG = "agent-rft"


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and how its series are called."""

    expr: str
    legend: str = "{{job}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """`unit` is Grafana's (s, bytes, percentunit, short, none); `width` in 24ths of the page. A text panel has `text`
    for its queries.
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
    """`variables` are names and the queries for their values, `annotations` names and expressions."""

    name: str
    title: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    variables: tuple[tuple[str, str], ...] = ()
    annotations: tuple[Query, ...] = ()

    @property
    def expressions(self) -> list[str]:
        """All that is asked of Prometheus."""
        panels = [panel for _, panels in self.rows for panel in panels]
        return [q.expr for panel in panels for q in panel.queries] + [q.expr for q in self.annotations]


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    """What Grafana provisions."""
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
    windows = [{"text": window, "value": window, "selected": window == WINDOWS[0]} for window in WINDOWS]
    return [
        {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"},
        *(_variable(name, query) for name, query in queries),
        {
            "type": "custom",
            "name": "window",
            "label": "averages over",
            "query": ",".join(WINDOWS),
            "options": windows,
            "current": windows[0],
        },
    ]


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "type": "query",
        "name": name,
        "label": name,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,  # whenever the time range changes
        "sort": 2,  # newest runs first: their names begin with the time
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
    """Rows and panels with their places, from left to right and down."""
    placed: list[dict[str, Any]] = []
    y = 0
    for title, panels in rows:
        placed.append(
            {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _place(0, y, WIDTH, 1)}
        )
        x, y = 0, y + 1
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + HEIGHT
            placed.append(_panel(panel) | {"gridPos": _place(x, y, panel.width, HEIGHT)})
            x += panel.width
        y += HEIGHT
    return [{"id": number, **panel} for number, panel in enumerate(placed, start=1)]


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
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
    # A job that was paused leaves a gap; between two steps there is none.
    return {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 5, "spanNulls": 120_000, "stacking": stacking}


_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "heatmap": {"calculate": False, "yAxis": {"axisPlacement": "left"}, "color": {"mode": "scheme", "scheme": "Blues"}},
}
