"""Recorder of one process's Prometheus metrics. It accepts only metric names of `agent_rft.metrics`.

A name includes the values of its labels, as in metrics.jsonl: `grading_errors/deadline`. A source is a function that
returns current values. It is called only when metrics are collected.
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

from agent_rft.metrics import METRICS, find_metric, to_prometheus_name
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
    """Example of a value in a histogram bucket, with the id of the trace in which the value was measured.

    `time` is the Unix time of the measurement. An empty trace id means that the bucket has no exemplar.
    """

    time: float = 0.0
    value: float = 0.0
    trace_id: str = ""


@dataclass(frozen=True, slots=True)
class HistogramCounts:
    """Histogram given by its counts: one count per bucket, and the sum of all values.

    The last bucket has the values above all bounds. `exemplars` has one entry per bucket, or is empty if traces
    are off.
    """

    counts: Sequence[int]
    sum_of_values: float
    exemplars: Sequence[Exemplar] = ()


MetricSource = Callable[[], Mapping[str, float | HistogramCounts]]


class Recorder(Collector):
    """Thread-safe recorder of one process's metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._collectors: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._sources: list[MetricSource] = []
        self.registry.register(self)

    def record(self, name: str, value: float = 1.0, trace_id: str = "") -> None:
        """Record a value: set a gauge, add to a counter, or observe the value in a histogram.

        NaN and infinity are ignored. `trace_id` is the trace in which the value was measured; it becomes the exemplar
        of the value's histogram bucket.

        Raises:
            KeyError: The name is not in `agent_rft.metrics`.
        """
        entry, labels = _find_metric(name)
        if METRICS[entry].kind == "file" or not math.isfinite(value):
            return
        made = self._collectors.get(entry) or self._make(entry, list(labels))
        one = made.labels(**labels) if labels else made
        match METRICS[entry].kind:
            case "gauge":
                one.set(value)
            case "counter":
                one.inc(value)
            case "histogram":
                one.observe(value, _exemplar_labels(trace_id))

    def initialize(self, *names: str) -> None:
        """Export these counters and histograms as 0 from now on. Prometheus needs a first sample to compute a rate.

        Raises:
            KeyError: A name is not in `agent_rft.metrics`.
        """
        for name in names:
            entry, labels = _find_metric(name)
            made = self._make(entry, list(labels))
            if labels:
                made.labels(**labels)

    def add_source(self, source: MetricSource) -> None:
        """Add a source of gauges, counters (totals since the start) and `HistogramCounts`.

        The source is called each time metrics are collected, in any thread. If it raises an error, its metrics are
        skipped and the error is counted.
        """
        self._sources.append(source)

    def count_error(self, error: Exception) -> None:
        """Count an error that prevented metrics from being read."""
        self.record(f"metric_source_errors/{type(error).__name__}")

    def _make(self, entry: str, labels: Sequence[str]) -> Any:
        metric, name = METRICS[entry], to_prometheus_name(entry)
        with self._lock:
            if entry not in self._collectors:
                options: dict[str, Any] = {"buckets": metric.buckets} if metric.kind == "histogram" else {}
                recorded = _RECORDED[metric.kind]
                self._collectors[entry] = recorded(name, metric.help, labels, registry=self.registry, **options)
            return self._collectors[entry]

    def collect(self) -> Iterable[Family]:
        """Return the metrics of all sources, for prometheus_client."""
        families: dict[str, Family] = {}
        for source in list(self._sources):
            try:
                _add_all(families, source())
            except Exception as error:  # noqa: BLE001 - such as an unreachable database
                self.count_error(error)
        return families.values()


def _exemplar_labels(trace_id: str) -> dict[str, str] | None:
    return {"trace_id": trace_id} if trace_id else None


def _convert_exemplar(found: Exemplar) -> OpenMetricsExemplar | None:
    labels = _exemplar_labels(found.trace_id)
    return None if labels is None else OpenMetricsExemplar(labels, found.value, found.time)


def _find_metric(name: str) -> tuple[str, dict[str, str]]:
    found = find_metric(name)
    if found is None:
        raise KeyError(name)
    return found


def _add_all(families: dict[str, Family], values: Mapping[str, float | HistogramCounts]) -> None:
    for name, value in values.items():
        entry, labels = _find_metric(name)
        if entry not in families:
            metric = METRICS[entry]
            families[entry] = _FAMILIES[metric.kind](to_prometheus_name(entry), metric.help, labels=list(labels))
        _add(families[entry], list(labels.values()), value, METRICS[entry].buckets)


def _add(family: Family, labels: Sequence[str], value: float | HistogramCounts, bounds: Sequence[float]) -> None:
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, HistogramCounts)
        sums, exemplars = accumulate(value.counts), value.exemplars or [Exemplar()] * len(value.counts)
        rows = zip([*bounds, "+Inf"], sums, exemplars, strict=True)
        buckets: Any = [(str(bound), float(count), _convert_exemplar(exemplar)) for bound, count, exemplar in rows]
        family.add_metric(labels, buckets, value.sum_of_values)
    else:
        assert not isinstance(value, HistogramCounts)
        family.add_metric(labels, value)
