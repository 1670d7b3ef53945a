"""Catalog of all names in messages, files and dashboards, with their meanings.

entries = build_catalog(settings)
find_entries("tool/search/errors", entries)    # the metric `tool/<tool>/errors`
find_entries("max_tool_calls", entries)        # the setting whose path ends with this key
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal, get_args

from pydantic_core.core_schema import ErrorType

from agent_rft.cli.reference.docstrings import docstring_text, to_sentence
from agent_rft.cli.reference.event_fields import describe_level, event_fields
from agent_rft.cli.reference.setting_list import DocumentedSetting
from agent_rft.cluster.observability.alerts import ALERTS
from agent_rft.cluster.observability.monitoring_files import DASHBOARDS
from agent_rft.errors import DiscardError
from agent_rft.events import KINDS as EVENT_KINDS
from agent_rft.metrics import METRICS, find_metric, to_prometheus_name
from agent_rft.metrics.metric_charts import CHARTS
from agent_rft.problems import PROBLEM_CODES, find_code
from agent_rft.problems.alarm_rules import ALARM_RULES
from agent_rft.problems.readiness_reasons import REASONS

Kind = Literal[
    "problem code", "setting", "metric", "event", "alarm rule", "discard reason", "readiness reason", "exit code"
]

SHOWN_MATCHES = 5
EXTRA_ERROR_TYPES = frozenset(("ip_any_network",))
"""Pydantic error types that pydantic_core's `ErrorType` does not list."""
_WHOLE_FILE = {"job": "the job's file", "operator": "the operator's configuration", "nodes": "the list of nodes"}
_OTHER_GRADERS = re.compile(r"(?:guards\[\d*\]\.grader|held_out_grader)(?=\.)|(?<=grader)\.graders\.[^.]+(?=\.)")
"""Regular expression for the part of a setting's path that names a guard's grader, the held-out grader or a
subgrader."""
_BRACKETS = re.compile(r"\[(\w*)\]")
_LABELS, _SAMPLE_PART = re.compile(r"\{[^{]*\}$"), re.compile(r"_(total|bucket|sum|count)$")


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """Explanation of one name; `facts` maps titles, such as type, default or unit, to values."""

    kind: Kind
    name: str
    meaning: str
    fix: str = ""
    facts: dict[str, str | list[str]] = field(default_factory=dict)


def build_catalog(settings: Iterable[DocumentedSetting]) -> list[CatalogEntry]:
    """Return one entry for each documented name.

    The names are those of `settings`, problem codes, metrics, events, alarm rules, discard and readiness reasons, and
    exit codes.
    """
    return [
        *(CatalogEntry("problem code", name, code.meaning, code.fix) for name, code in PROBLEM_CODES.items()),
        *map(_setting_entry, settings),
        *map(_metric_entry, METRICS),
        *(_event_entry(kind) for kind in EVENT_KINDS),
        *(CatalogEntry("alarm rule", name, rule.meaning, rule.fix) for name, rule in ALARM_RULES.items()),
        *(CatalogEntry("discard reason", cls.reason, docstring_text(cls)) for cls in DiscardError.__subclasses__()),
        *(
            CatalogEntry(
                "readiness reason", reason, text.meaning, text.fix, {"verdict": text.verdict or "none (only a note)"}
            )
            for reason, text in REASONS.items()
        ),
        *(CatalogEntry("exit code", str(code), meaning) for code, meaning in EXIT_CODES.items()),
    ]


def find_entries(name: str, entries: Sequence[CatalogEntry]) -> list[CatalogEntry]:
    """Return the entries for a name. A name may have two entries, such as a problem code and a discard reason."""
    entry_names = set(_entry_names(name))
    found = [entry for entry in entries if entry.name in entry_names and entry.kind != "setting"]
    return found + _find_settings(name, [entry for entry in entries if entry.kind == "setting"])


def similar_names(name: str, entries: Sequence[CatalogEntry]) -> list[str]:
    """Return the names of entries that are spelled similarly to `name`, the most similar first."""
    names = {known: entry.name for entry in entries for known in (entry.name, entry.name.rpartition(".")[2])}
    return list(dict.fromkeys(names[close] for close in get_close_matches(name, names, SHOWN_MATCHES)))


def _entry_names(name: str) -> Iterator[str]:
    """Yield the catalog names that the user may mean by `name`.

    These are `name`, the family of the metric or code, and the metrics with this Prometheus name.
    """
    yield name
    if (metric := find_metric(name)) is not None:
        yield metric[0]
    sample = _LABELS.sub("", name)
    yield from (entry for entry in METRICS if sample in {*prometheus_names(entry), *_bare_names(entry)})
    if (code := find_code(name)) is not None and _is_member(name, code):
        yield code


def _bare_names(entry: str) -> set[str]:
    """Return the Prometheus names of a metric without the suffixes that its kind adds, such as `_total`."""
    return {_SAMPLE_PART.sub("", sample) for sample in prometheus_names(entry)}


def _is_member(code: str, family: str) -> bool:
    """Return whether a problem code belongs to a family of codes.

    A code of the family `invalid_<type>` must end with an error type of pydantic.
    """
    return family != "invalid_<type>" or code.removeprefix("invalid_") in {*get_args(ErrorType), *EXTRA_ERROR_TYPES}


def _find_settings(name: str, entries: Sequence[CatalogEntry]) -> list[CatalogEntry]:
    """Return the settings with the path `name`, or else the settings whose path ends with `name`."""
    path = name
    for found in reversed([*_OTHER_GRADERS.finditer(name)]):
        path = path[: found.start()] + ("" if found.group()[0] == "." else "grader") + path[found.end() :]
    exact = [entry for entry in entries if _path_pattern(entry.name).fullmatch(path)]
    return exact or [entry for entry in entries if any(end.fullmatch(path) for end in _path_suffixes(entry.name))]


def _path_suffixes(path: str) -> Iterator[re.Pattern[str]]:
    keys = path.split(".")
    yield from (_path_pattern(".".join(keys[start:])) for start, key in enumerate(keys) if key != "NAME")


def _path_pattern(path: str) -> re.Pattern[str]:
    """Return a pattern that matches a setting's path as users may write it.

    Users may omit brackets or write an index in them. For example, the pattern for `tools[].name` matches `tools.name`,
    `tools[].name` and `tools[0].name`.
    """
    keys = ("[^.]+" if key == "NAME" else _BRACKETS.sub(_make_optional, key) for key in path.split("."))
    return re.compile(r"\.".join(keys))


def _make_optional(brackets: re.Match[str]) -> str:
    return rf"(?:\[{brackets[1] or '[0-9]*'}\])?"


def _setting_entry(setting: DocumentedSetting) -> CatalogEntry:
    facts: dict[str, str | list[str]] = {"in": _WHOLE_FILE[setting.file], "type": setting.type}
    facts["default"] = "none (required)" if setting.default is None else setting.default
    if setting.bounds is not None:
        facts["bounds"] = setting.bounds
    return CatalogEntry("setting", setting.path, setting.description, facts=facts)


def _metric_entry(name: str) -> CatalogEntry:
    metric = METRICS[name]
    facts: dict[str, str | list[str]] = {
        "unit": metric.unit or "none",
        "kind": metric.kind,
        "Prometheus receives": METRIC_KINDS[metric.kind],
        "in Prometheus": list(prometheus_names(name)),
        "shown in": list(list_metric_places(name)),
    }
    return CatalogEntry(
        "metric", name, to_sentence(metric.help), facts={key: value for key, value in facts.items() if value}
    )


def _event_entry(kind: str) -> CatalogEntry:
    cls = EVENT_KINDS[kind]
    fields = [f"{name} ({type_}): {about}" for name, type_, about in event_fields(cls)]
    facts: dict[str, str | list[str]] = {"level": describe_level(cls)}
    return CatalogEntry("event", kind, docstring_text(cls), facts=facts | ({"fields": fields} if fields else {}))


# -- exit codes --------------------------------------------------------------------------------------------------------


EXIT_CODES = {
    0: "Success: the run or the followed job succeeded.",
    1: "Failure: the run or the followed job failed, an endpoint or a server does not answer, or there is nothing to "
    "grade.",
    2: "The job, the request or the command line is invalid, or `plan` found something that does not fit. Nothing was "
    "started.",
    3: "The followed job was cancelled.",
    4: "`ready` found something to do before training: its verdict is `fix_first` or `sft_warm_up`.",
    130: "Stopped by a signal. A stopped run can be resumed with `--resume`.",
}


# -- metrics -----------------------------------------------------------------------------------------------------------


_SUFFIXES = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "file": ()}
METRIC_KINDS = {
    "gauge": "the last value",
    "counter": "a sum since the process started",
    "histogram": "the number of observations in each bucket, and the sum and count of all observations",
    "file": "no value: the metric is written only to metrics.jsonl",
}
"""Values that Prometheus receives for a metric, by the metric's kind."""


def prometheus_names(metric_name: str) -> tuple[str, ...]:
    """Return the names of a metric's samples in Prometheus; empty if the metric is only in metrics.jsonl."""
    return tuple(to_prometheus_name(metric_name) + suffix for suffix in _SUFFIXES[METRICS[metric_name].kind])


def list_metric_places(metric_name: str) -> Iterator[str]:
    """Yield a description of each place that shows a metric: dashboards, alerts, report, live view and API events."""
    metric, names = METRICS[metric_name], set(prometheus_names(metric_name))
    for dashboard in DASHBOARDS:
        for _, panels in dashboard.rows:
            for panel in panels:
                if any(names & _metric_names_in(query.expr) for query in panel.queries):
                    yield f"{dashboard.title.removeprefix('agent-rft: ')} dashboard, {panel.title!r}"
    for alert in ALERTS:
        if names & _metric_names_in(alert.expr):
            yield f"alert {alert.name}"
    if metric.chart:
        yield f"report, {CHARTS[metric.chart].title!r}"
    if metric.in_live_view:
        yield f"live view, {metric.label!r}"
    if metric.message:
        yield f"API's metrics events, {metric.message!r}"


def _metric_names_in(expr: str) -> set[str]:
    return set(re.findall(r"\bagent_rft_\w+", expr))
