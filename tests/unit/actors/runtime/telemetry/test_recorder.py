"""Recorded metrics reach Prometheus with the name, labels and kind that `agent_rft.metrics` gives them."""

from __future__ import annotations

import math

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from agent_rft.actors.endpoints.endpoint_statistics import EndpointStats, merge_stats, to_live_metrics
from agent_rft.actors.runtime.telemetry.recorder import HistogramCounts, Recorder
from agent_rft.metrics import METRICS, to_prometheus_name
from agent_rft.metrics.metric import SECONDS


def samples(recorder: Recorder) -> dict[str, float]:
    lines = generate_latest(recorder.registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_a_gauge_keeps_the_last_value_a_counter_the_sum_and_a_histogram_the_distribution() -> None:
    recorder = Recorder()
    for value in (1.0, 2.0):
        recorder.record("train_mean_reward", value)
        recorder.record("finish/answer", value)
        recorder.record("time_wait_s", value)
    found = samples(recorder)
    assert found["agent_rft_train_mean_reward"] == 2.0
    assert found['agent_rft_finish_total{reason="answer"}'] == 3.0
    assert found["agent_rft_time_wait_seconds_sum"] == 3.0
    assert found['agent_rft_time_wait_seconds_bucket{le="1.0"}'] == 1.0
    assert found['agent_rft_time_wait_seconds_bucket{le="+Inf"}'] == 2.0


def test_an_unknown_name_is_an_error_and_nan_is_ignored() -> None:
    recorder = Recorder()
    with pytest.raises(KeyError):
        recorder.record("made_up", 1.0)
    recorder.record("loss", math.nan)
    recorder.record("endpoint/tool/queue_sum_s", 1.0)  # in metrics.jsonl only
    assert samples(recorder) == {}


def test_begin_exports_zero_before_the_first_value() -> None:
    recorder = Recorder()
    recorder.initialize("groups_trained", "time_step_s")
    found = samples(recorder)
    assert found["agent_rft_groups_trained_total"] == found["agent_rft_time_step_seconds_count"] == 0.0


def test_an_endpoint_s_counts_are_read_at_each_scrape() -> None:
    stats = EndpointStats()
    recorder = Recorder()
    now = {"limit": 4, "in_flight": 1, "queued": 0, "breaker": "half_open"}
    recorder.add_source(lambda: to_live_metrics({"tool 'search'": stats.as_dict() | now}))
    stats.calls += 3
    stats.errors["deadline"] += 1
    for latency_s in (0.001, 0.2, 1000.0):
        stats.record_latency(latency_s)
    stats.record_queue_time(0.3)
    found = samples(recorder)
    where = "{endpoint=\"tool 'search'\""
    assert found[f"agent_rft_endpoint_calls_total{where}}}"] == 3.0
    assert found[f'agent_rft_endpoint_errors_total{where},kind="deadline"}}'] == 1.0
    assert found[f"agent_rft_endpoint_breaker{where}}}"] == 1.0
    buckets = [found[f'agent_rft_endpoint_latency_seconds_bucket{where},le="{le}"}}'] for le in (0.005, 0.25, 300.0)]
    assert buckets == [1.0, 2.0, 2.0]
    assert found[f"agent_rft_endpoint_latency_seconds_count{where}}}"] == 3.0
    assert found[f"agent_rft_endpoint_latency_seconds_sum{where}}}"] == pytest.approx(1000.201)
    assert found[f"agent_rft_endpoint_queue_seconds_count{where}}}"] == 1.0


def test_the_trace_of_a_value_is_the_exemplar_of_its_bucket_in_openmetrics_only() -> None:
    recorder, stats = Recorder(), EndpointStats()
    now = {"limit": 4, "in_flight": 0, "queued": 0, "breaker": "closed"}
    recorder.add_source(lambda: to_live_metrics(merge_stats([{"tool 'x'": stats.as_dict() | now}] * 2)))
    recorder.record("grade_s", 0.3, "a" * 32)
    recorder.record("grade_s", 0.3)
    stats.record_latency(0.3, "b" * 32)
    stats.record_latency(0.001)
    text = openmetrics.generate_latest(recorder.registry).decode()
    found = {
        (sample.name, sample.labels["le"]): sample.exemplar
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert {key: (e.labels["trace_id"][0], e.value) for key, e in found.items()} == {
        ("agent_rft_grade_seconds_bucket", "0.5"): ("a", 0.3),
        ("agent_rft_endpoint_latency_seconds_bucket", "0.5"): ("b", 0.3),
    }
    assert "trace_id" not in generate_latest(recorder.registry).decode()


def test_a_spread_counts_values_above_all_bounds() -> None:
    recorder = Recorder()
    counts = [*([0] * len(SECONDS)), 2]
    recorder.add_source(lambda: {"endpoint/x/latency_s": HistogramCounts(counts, 900.0)})
    assert samples(recorder)['agent_rft_endpoint_latency_seconds_bucket{endpoint="x",le="+Inf"}'] == 2.0


def test_a_source_that_raises_is_skipped_and_counted() -> None:
    class DatabaseAway(Exception):
        pass

    def broken() -> dict[str, float]:
        raise DatabaseAway

    recorder = Recorder()
    recorder.add_source(broken)
    recorder.add_source(lambda: {"made_up": 1.0})
    recorder.add_source(lambda: {"api_jobs/queued": 2.0})
    generate_latest(recorder.registry)
    found = samples(recorder)
    assert found['agent_rft_api_jobs{state="queued"}'] == 2.0
    assert found['agent_rft_metric_source_errors_total{error="DatabaseAway"}'] >= 1.0
    assert found['agent_rft_metric_source_errors_total{error="KeyError"}'] >= 1.0


def test_no_two_metrics_share_a_name() -> None:
    shown = [to_prometheus_name(name) for name, metric in METRICS.items() if metric.kind != "file"]
    assert len(set(shown)) == len(shown)
    assert all((metric.kind == "histogram") == bool(metric.buckets) for metric in METRICS.values())
