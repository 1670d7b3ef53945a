"""Grafana dashboards, and their conversion to JSON.

This module supports only the features that our dashboards use: rows of panels, one Prometheus data source, and
variables.

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
"""Dashboard variables for the averaging window, each with its label and choices. The first choice is the default.

Metrics that are recorded once per step use the variable `steps`. Its windows are longer, because a window without a
step has no value to average.
"""
CONSOLE = "http://127.0.0.1:8000"
"""Default base URL of links to the console. Each dashboard has a text field to change this URL."""
ALERT_COLORS = {"warning": "orange", "critical": "red"}
SCHEMA_VERSION = 39
TAG = "agent-rft"


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL expression with the legend of its series.

    `legend` is a Grafana template such as `{{job}}`, which inserts a label of the series. If `is_instant`, the panel
    shows only the value at the end of the time range. `dashed` and `color` style the line.
    """

    expr: str
    legend: str = "{{job}}"
    is_instant: bool = False
    dashed: bool = False
    color: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """Dashboard variable: a list from which the viewer selects values.

    The values come from the result of `query`. If `regex` is set, it extracts the values and keeps their order;
    otherwise the values are sorted. If `is_multi`, the viewer can select any number of values, and all are selected by
    default. Otherwise the viewer can select one value, by default the first.
    """

    name: str
    query: str
    regex: str = ""
    is_multi: bool = True

    def as_single(self) -> Variable:
        return replace(self, is_multi=False)


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel with `queries`, or with the Markdown `text` if its kind is `text`.

    - `unit`: Name of a unit in Grafana, such as s, bytes, percentunit, short or none.
    - `width`: Width in 24ths of the page.
    - `about`: Tooltip of the title.
    - `no_data_text`: Text that is shown instead of "No data".
    - `console_page`: Console page that opens when the viewer clicks a value. In the page's URL, Grafana replaces
      `${__value.numeric}` with the value, and `${__value.time}` with the time in ms.
    - `min_axis_max`: The vertical axis extends at least to this value.
    - `legend_at_right`: Whether the legend is to the right of the chart. More than six series do not fit below it.
    - `alerts`: Alerts whose numeric thresholds are drawn as lines.
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
    no_data_text: str = ""
    console_page: str = ""
    min_axis_max: float = 0.01
    legend_at_right: bool = False
    alerts: tuple[Alert, ...] = ()

    @property
    def thresholds(self) -> dict[float, str]:
        """Colors of the numeric thresholds of `alerts`, by threshold in ascending order."""
        found = {each.condition.threshold: ALERT_COLORS[each.severity] for each in self.alerts}
        return {value: found[value] for value in sorted(value for value in found if not isinstance(value, str))}


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Dashboard: rows of panels, each row with a title.

    `annotations` are queries for marks on the time axis. The marks of a query are named after the query's legend. By
    default, only the marks of the first query are shown. A link at the top of the dashboard opens the console page
    `console_page`.
    """

    name: str
    title: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    variables: tuple[Variable, ...] = ()
    annotations: tuple[Query, ...] = ()
    console_page: str = ""

    @property
    def uid(self) -> str:
        """Dashboard id in Grafana."""
        return f"agent-rft-{self.name}"

    @property
    def label(self) -> str:
        """Short name, such as `Job` for `agent-rft: Job`."""
        return self.title.rpartition(": ")[2]

    @property
    def numbered_panels(self) -> list[tuple[int, Panel]]:
        """All panels, each with its id in Grafana. The ids have gaps, because row headers have ids, too."""
        parts = [part for _, panels in self.rows for part in (None, *panels)]
        return [(number, part) for number, part in enumerate(parts, start=1) if part is not None]

    @property
    def named_expressions(self) -> list[tuple[str, str]]:
        """Pairs of name and PromQL expression; the name is the panel's title or the annotation's legend."""
        from_panels = [(panel.title, query.expr) for _, panel in self.numbered_panels for query in panel.queries]
        return from_panels + [(mark.legend, mark.expr) for mark in self.annotations]


def dashboard_json(dashboard: Dashboard) -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model, ready for provisioning."""
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
            {"type": "link", "icon": "external link", **_console_link(dashboard.console_page)},
        ],
        "templating": {"list": _variables(dashboard.variables)},
        "annotations": {"list": [_annotation(*each) for each in zip(dashboard.annotations, _MARKS, strict=False)]},
        "panels": _lay_out(dashboard.rows),
    }


_MARKS = (("green", True), ("purple", False))


def _variables(variables: Iterable[Variable]) -> list[dict[str, Any]]:
    return [
        {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus"},
        *map(_query_variable, variables),
        *(_window_variable(name, label, choices) for name, (label, choices) in WINDOWS.items()),
        {"type": "textbox", "name": "console", "label": "console", "query": CONSOLE},
    ]


def _window_variable(name: str, label: str, choices: Sequence[str]) -> dict[str, Any]:
    options = [{"text": choice, "value": choice, "selected": choice == choices[0]} for choice in choices]
    shown = {"query": ",".join(choices), "options": options, "current": options[0]}
    return {"type": "custom", "name": name, "label": label, **shown}


def _query_variable(variable: Variable) -> dict[str, Any]:
    variable_json: dict[str, Any] = {
        "type": "query",
        "name": variable.name,
        "label": variable.name,
        "datasource": DATASOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "definition": variable.query,
        "regex": variable.regex,
        "refresh": 2,  # whenever the time range changes
        "sort": 0 if variable.regex else 1,  # 0: order of the query, 1: by name
        "multi": variable.is_multi,
        "includeAll": variable.is_multi,
    }
    everything = {"allValue": ".+", "current": {"text": ["All"], "value": ["$__all"]}}
    return variable_json | (everything if variable.is_multi else {"current": {}})


def _console_link(page: str) -> dict[str, Any]:
    """Return a link to a page of the console, whose routes begin with `#/`."""
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


def _lay_out(rows: Sequence[tuple[str, Sequence[Panel]]]) -> list[dict[str, Any]]:
    """Return row headers and panels with grid positions, filled from left to right and top to bottom."""
    placed_panels: list[dict[str, Any]] = []
    y = 0
    for title, panels in rows:
        placed_panels.append(
            {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _grid_position(0, y, WIDTH, 1)}
        )
        x, y, bottom = 0, y + 1, y + 1
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y = 0, bottom
            placed_panels.append(_panel(panel) | {"gridPos": _grid_position(x, y, panel.width, panel.height)})
            x, bottom = x + panel.width, max(bottom, y + panel.height)
        y = bottom
    return [{"id": number, **panel} for number, panel in enumerate(placed_panels, start=1)]


def _grid_position(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(panel: Panel) -> dict[str, Any]:
    notes = [f"The line shows the threshold of the alert {each.name} ({each.severity})." for each in panel.alerts]
    about = "\n\n".join(filter(None, (panel.about, *notes)))
    panel_json: dict[str, Any] = {"type": panel.kind, "title": panel.title, "description": about}
    if panel.kind == "text":
        return panel_json | {"options": {"mode": "markdown", "content": panel.text}}
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "custom": _line_options(panel),
        "color": {"mode": "palette-classic"},
    }
    defaults |= {"decimals": 1} if panel.unit == "sci" else {}
    defaults |= {"noValue": panel.no_data_text} if panel.no_data_text else {}
    defaults |= {"links": [_console_link(panel.console_page)]} if panel.console_page else {}
    steps = [{"color": color, "value": value} for value, color in panel.thresholds.items()]
    base = {"color": "transparent", "value": None}  # Grafana requires a step below the first threshold
    defaults |= {"thresholds": {"mode": "absolute", "steps": [base, *steps]}} if steps else {}
    targets = {chr(ord("A") + number): query for number, query in enumerate(panel.queries)}
    return panel_json | {
        "datasource": DATASOURCE,
        "targets": [_query_target(ref, query, panel.kind) for ref, query in targets.items()],
        "fieldConfig": {
            "defaults": defaults,
            "overrides": [
                {"matcher": _match_query(ref), "properties": properties}
                for ref, query in targets.items()
                if (properties := _line_properties(query))
            ],
        },
        "options": _PANEL_OPTIONS[panel.kind] | ({"legend": _LEGEND_AT_RIGHT} if panel.legend_at_right else {}),
    }


def _query_target(ref: str, query: Query, kind: str) -> dict[str, Any]:
    return {
        "refId": ref,
        "datasource": DATASOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": "heatmap" if kind == "heatmap" else "time_series",
        "instant": query.is_instant,
        "range": not query.is_instant,
    }


def _match_query(ref: str) -> dict[str, str]:
    return {"id": "byFrameRefID", "options": ref}


def _line_properties(query: Query) -> list[dict[str, Any]]:
    dashed = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 8]}}
    color = {"id": "color", "value": {"mode": "fixed", "fixedColor": query.color}}
    return [dashed] * query.dashed + [color] * bool(query.color)


def _line_options(panel: Panel) -> dict[str, Any]:
    if panel.kind != "timeseries":
        return {}
    stacking = {"mode": "normal" if panel.stacked else "none"}
    # spanNulls is in ms: a paused job leaves a gap, successive steps do not.
    return {
        "axisSoftMin": 0,
        **({"axisSoftMax": max([panel.min_axis_max, *panel.thresholds])} if panel.unit in _COUNTED else {}),
        **({"thresholdsStyle": {"mode": "line"}} if panel.thresholds else {}),
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stacked else 5,
        "spanNulls": 120_000,
        "stacking": stacking,
    }


_COUNTED = ("short", "none", "percentunit")
"""Units whose axis Grafana would extend to 100 if all values are 0; `min_axis_max` prevents this."""
_LEGEND_AT_RIGHT = {"displayMode": "table", "placement": "right", "calcs": ["lastNotNull"]}
_PANEL_OPTIONS: dict[str, dict[str, Any]] = {
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
