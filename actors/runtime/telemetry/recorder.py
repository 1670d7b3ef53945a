"""What one process records for Prometheus, under the names of `agent_rft.metrics` only.

A name carries its labels (`grade_errors/deadline`), as in metrics.jsonl. Numbers that other code already counts come
from a source, a function that is called at each scrape and costs nothing in between.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as OpenMetricsExemplar

from agent_rft.metrics import METRICS, metric_of, prometheus_name
from agent_rft.metrics.metric import Kind

Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
_RECORDED: dict[Kind, type[Counter | Gauge | Histogram]] = {
    "counter": Counter,
    "gauge": Gauge,
    "histogram": Histogram,
    "file": Gauge,
}
_FAMILIES: dict[Kind, type[Family]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "file": GaugeMetricFamily,
}


class Exemplar(NamedTuple):
    """The trace of one of a bucket's values, which came at a time in Unix seconds; without an id there is none yet."""

    at: float = 0.0
    value: float = 0.0
    trace_id: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """A histogram counted elsewhere: one count per bucket (the last one is above all bounds), and the sum of values.

    `exemplars` are those of the buckets, if there are traces.
    """

    counts: Sequence[int]
    total: float
    exemplars: Sequence[Exemplar] = ()


MetricSource = Callable[[], Mapping[str, float | Spread]]


class Recorder(Collector):
    """The metrics of one process; thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._made: dict[str, Any] = {}
        self._making = threading.Lock()
        self._sources: list[MetricSource] = []
        self.registry.register(self)

    def record(self, name: str, value: float = 1.0, trace_id: str = "") -> None:
        """Set a gauge to the value, add it to a counter, or observe it in a histogram; NaN and infinity are ignored.

        The id of the trace that the value came from becomes the exemplar of its bucket.

        Raises:
            KeyError: the name is not in `agent_rft.metrics`.
        """
        entry, labels = _listed(name)
        if METRICS[entry].kind == "file" or not math.isfinite(value):
            return
        made = self._made.get(entry) or self._make(entry, list(labels))
        one = made.labels(**labels) if labels else made
        match METRICS[entry].kind:
            case "gauge":
                one.set(value)
            case "counter":
                one.inc(value)
            case "histogram":
                one.observe(value, _labels(trace_id))

    def begin(self, *names: str) -> None:
        """Export counters and histograms as 0 from now on: Prometheus needs a first sample for a rate.

        Raises:
            KeyError: a name is not in `agent_rft.metrics`.
        """
        for name in names:
            entry, labels = _listed(name)
            made = self._make(entry, list(labels))
            if labels:
                made.labels(**labels)

    def add(self, source: MetricSource) -> None:
        """Call `source` at each scrape, in any thread, for gauges, counters (totals since the start) and Spreads.

        A source that raises is skipped in that scrape and counted.
        """
        self._sources.append(source)

    def count_error(self, error: Exception) -> None:
        """Count metrics that could not be read because of `error`."""
        self.record(f"metric_source_errors/{type(error).__name__}")

    def _make(self, entry: str, labels: Sequence[str]) -> Any:
        metric, name = METRICS[entry], prometheus_name(entry)
        with self._making:
            if entry not in self._made:
                options: dict[str, Any] = {"buckets": metric.buckets} if metric.kind == "histogram" else {}
                recorded = _RECORDED[metric.kind]
                self._made[entry] = recorded(name, metric.help, labels, registry=self.registry, **options)
            return self._made[entry]

    def collect(self) -> Iterable[Family]:
        """The metrics of the sources, for prometheus_client."""
        families: dict[str, Family] = {}
        for source in list(self._sources):
            try:
                _add_all(families, source())
            except Exception as error:  # noqa: BLE001 - such as of a database that is away
                self.count_error(error)
        return families.values()


def _labels(trace_id: str) -> dict[str, str] | None:
    return {"trace_id": trace_id} if trace_id else None


def _exemplar(found: Exemplar) -> OpenMetricsExemplar | None:
    labels = _labels(found.trace_id)
    return None if labels is None else OpenMetricsExemplar(labels, found.value, found.at)


def _listed(name: str) -> tuple[str, dict[str, str]]:
    found = metric_of(name)
    if found is None:
        raise KeyError(name)
    return found


def _add_all(families: dict[str, Family], values: Mapping[str, float | Spread]) -> None:
    for name, value in values.items():
        entry, labels = _listed(name)
        if entry not in families:
            metric = METRICS[entry]
            families[entry] = _FAMILIES[metric.kind](prometheus_name(entry), metric.help, labels=list(labels))
        _add(families[entry], list(labels.values()), value, METRICS[entry].buckets)


def _add(family: Family, labels: Sequence[str], value: float | Spread, bounds: Sequence[float]) -> None:
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Spread)
        sums, exemplars = accumulate(value.counts), value.exemplars or [Exemplar()] * len(value.counts)
        rows = zip([*bounds, "+Inf"], sums, exemplars, strict=True)
        buckets: Any = [(str(bound), float(count), _exemplar(exemplar)) for bound, count, exemplar in rows]
        family.add_metric(labels, buckets, value.total)
    else:
        assert not isinstance(value, Spread)
        family.add_metric(labels, value)
