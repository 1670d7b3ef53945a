"""reference/metrics.md: each metric with its unit, its name in Prometheus and where it is shown."""

from __future__ import annotations

from collections.abc import Iterator

from agent_rft.cli.reference.catalog import METRIC_KINDS, list_metric_places, prometheus_names
from agent_rft.cli.reference.docstrings import to_sentence
from agent_rft.metrics import EVALUATION_METRICS, METRIC_GROUPS
from agent_rft.metrics.metric import Metric
from docs.generator.markdown import code, plain, table

_INTRO = """# Metrics

Each line of `metrics.jsonl` in the run folder is a JSON object whose keys are the names in the first column. Prometheus
reads the same values from the metrics port of every node that runs a part of a job. [Monitoring](../monitoring.md)
describes the setup and the dashboards.

A name with a `<placeholder>` stands for several metrics: `tool/<tool>/errors` is `tool/search/errors` in the file and
`agent_rft_tool_errors_total{tool="search"}` in Prometheus. Every sample in Prometheus also has the labels `job` and
`process`. `agent-rft explain NAME` prints the description of a metric.

The kind of a metric determines what Prometheus receives:

"""


def pages() -> dict[str, str]:
    """The page of all metrics."""
    kinds = "".join(f"- {kind}: {meaning}\n" for kind, meaning in METRIC_KINDS.items())
    groups = "".join(f"\n## {title}\n\n{_group(metrics)}" for title, metrics in METRIC_GROUPS.items())
    head = ("Name", "Unit", "Meaning")
    rows = ((code(name), metric.unit, plain(to_sentence(metric.help))) for name, metric in EVALUATION_METRICS.items())
    before_after = "Values that `agent-rft train` compares on the test file, and that the report shows in a table.\n\n"
    return {"metrics.md": _INTRO + kinds + groups + f"\n## Before and after\n\n{before_after}{table(head, rows)}"}


def _group(metrics: dict[str, Metric]) -> str:
    head = ("Name, and in Prometheus", "Unit", "Kind", "Meaning", "Shown in")
    return table(head, (tuple(_cells(name, metric)) for name, metric in metrics.items()))


def _cells(name: str, metric: Metric) -> Iterator[str]:
    yield "<br>".join(map(code, (name, *prometheus_names(name))))
    yield metric.unit
    yield metric.kind
    yield plain(to_sentence(metric.help))
    yield "<br>".join(list_metric_places(name))
