"""One port serves the metrics of all processes and jobs of a node, as long as one of them lives."""

from __future__ import annotations

import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from agent_rft.actors.runtime.telemetry.exporter import (
    DELETE_AFTER_S,
    FORMATS,
    SILENT_S,
    MetricsAddress,
    Telemetry,
    add_labels,
    delete_stale_files,
    merge_texts,
    read_metric_files,
)
from agent_rft.errors import UserError
from tests.support.fakes_http import unused_port

PERIOD_S = 0.05


@pytest.fixture
def port() -> int:
    return unused_port()


@pytest.fixture
def start(port: int) -> Iterator[Callable[[str, str], Telemetry]]:
    """Starts the telemetry of a process and closes it after the test."""
    started: list[Telemetry] = []

    def start(job: str, process: str) -> Telemetry:
        started.append(Telemetry(MetricsAddress(job, "127.0.0.1", port), process, PERIOD_S))
        return started[-1]

    yield start
    with ThreadPoolExecutor(len(started)) as together:
        list(together.map(Telemetry.close, started))
    folder = MetricsAddress("", "", port).folder
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def scrape(port: int) -> dict[tuple[str, str, str], float]:
    """Our samples without further labels, by name, job and process; asserts that nothing is duplicated."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    keys = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples]
    assert len(set(keys)) == len(keys)
    assert len({family.name for family in families}) == len(families)
    assert all({"job", "process"} <= sample.labels.keys() for sample in samples)
    return {(s.name, s.labels["job"], s.labels["process"]): s.value for s in samples}


def eventually(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if holds():
                return
        except urllib.error.URLError:
            pass
        assert time.monotonic() < deadline
        time.sleep(PERIOD_S)


def test_processes_of_many_jobs_are_served_on_one_port(port: int, start: Callable[[str, str], Telemetry]) -> None:
    for job in range(10):
        for process in ("driver", "engine-0"):
            start(f"job-{job}", process).recorder.record("step", job)
    wanted = {("agent_rft_step", f"job-{job}", p): job for job in range(10) for p in ("driver", "engine-0")}
    eventually(lambda: wanted.items() <= scrape(port).items())
    assert ("process_resident_memory_bytes", "job-3", "engine-0") in scrape(port)
    assert scrape(port)["agent_rft_process_up", "job-3", "engine-0"] == 1.0


def test_openmetrics_keeps_the_colons_of_vllms_names() -> None:
    registry = CollectorRegistry()
    Counter("vllm:prompt_tokens", "Prompt tokens.", registry=registry).inc()
    for form in FORMATS:
        assert b"\nvllm:prompt_tokens_total 1.0\n" in form.render_registry(registry)


def test_a_scraper_that_asks_for_openmetrics_gets_exemplars(port: int, start: Callable[[str, str], Telemetry]) -> None:
    for process in ("engine-0", "grader-pool"):
        start("job", process).recorder.record("grade_s", 0.3, "0123456789abcdef" * 2)
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0,*/*;q=0.1"}
    )
    found: list[tuple[str, str]] = []

    def both() -> bool:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            families = list(openmetrics_families(answer.read().decode()))
        samples = [sample for family in families for sample in family.samples if sample.exemplar]
        found[:] = [(s.labels["process"], s.exemplar.labels["trace_id"]) for s in samples if s.exemplar]
        return len(found) == 2

    eventually(both)
    assert found == [(process, "0123456789abcdef" * 2) for process in ("engine-0", "grader-pool")]
    plain = ("agent_rft_grade_seconds_count", "job", "engine-0")
    eventually(lambda: scrape(port).get(plain) == 1.0)  # another file, which each process writes in its own time


def test_metrics_continue_after_sources_and_collectors_of_libraries_raised(
    port: int, start: Callable[[str, str], Telemetry]
) -> None:
    class Away(Exception):
        pass

    class Broken(Collector):
        def describe(self) -> list[Metric]:
            return []

        def collect(self) -> Iterator[Metric]:
            raise Away

    def broken() -> dict[str, float]:
        raise Away

    library = Broken()
    telemetry = start("a-job", "api-0")
    telemetry.recorder.add_source(broken)
    errors = ("agent_rft_metric_source_errors_total", "a-job", "api-0")
    eventually(lambda: scrape(port).get(errors, 0) > 2)
    REGISTRY.register(library)
    try:
        telemetry.recorder.record("step", 7)
        eventually(lambda: scrape(port).get(("agent_rft_step", "a-job", "api-0")) == 7)
        assert ("process_resident_memory_bytes", "a-job", "api-0") not in scrape(port)
    finally:
        REGISTRY.unregister(library)
    eventually(lambda: ("process_resident_memory_bytes", "a-job", "api-0") in scrape(port))


def test_another_process_takes_over_the_port(port: int, start: Callable[[str, str], Telemetry]) -> None:
    first = start("job", "driver")
    first.recorder.record("step", 3)
    first.recorder.record("groups_trained", 5)
    eventually(lambda: ("agent_rft_step", "job", "driver") in scrape(port))
    start("job", "engine-0").recorder.record("engine_version", 1)
    first.close()
    eventually(lambda: ("agent_rft_engine_version", "job", "engine-0") in scrape(port))
    assert scrape(port)["agent_rft_groups_trained_total", "job", "driver"] == 5.0


def test_the_last_process_waits_for_a_regular_scraper(port: int, start: Callable[[str, str], Telemetry]) -> None:
    series = ("agent_rft_step", "job", "driver")
    last = start("job", "driver")
    eventually(lambda: bool(scrape(port)))
    for _ in range(2):
        time.sleep(0.5)
        scrape(port)
    last.recorder.record("step", 9)
    closing = threading.Thread(target=last.close)
    closing.start()
    time.sleep(0.3)
    assert scrape(port)[series] == 9.0
    closing.join(5)
    assert not closing.is_alive()
    with pytest.raises(urllib.error.URLError):
        scrape(port)


def test_a_new_process_of_the_same_name_replaces_the_metrics_of_the_old_one(
    port: int, start: Callable[[str, str], Telemetry]
) -> None:
    series = ("agent_rft_groups_lost_total", "job", "engine-0")
    first = start("job", "engine-0")
    first.recorder.record("groups_lost", 7)
    eventually(lambda: scrape(port).get(series) == 7.0)
    first.close()
    start("job", "engine-0").recorder.record("groups_lost", 1)
    eventually(lambda: scrape(port).get(series) == 1.0)


def test_an_occupied_port_costs_only_the_metrics(port: int, start: Callable[[str, str], Telemetry]) -> None:
    with socket.create_server(("127.0.0.1", port)):
        telemetry = start("job", "driver")
        telemetry.recorder.record("step", 1)
        folder = MetricsAddress("job", "", port).folder
        eventually(lambda: any("agent_rft_step" in path.read_text() for path in folder.glob("*.prom")))
    eventually(lambda: scrape(port).get(("agent_rft_step", "job", "driver")) == 1.0)


def test_a_silent_process_loses_its_gauges_first_and_then_its_counters(tmp_path: Path) -> None:
    text = "# HELP a x\n# TYPE a gauge\na 1\n# HELP b_total x\n# TYPE b_total counter\nb_total 2\n"
    (tmp_path / "job-engine-0.prom").write_text(add_labels(text, 'job="job"'))
    written = (tmp_path / "job-engine-0.prom").stat().st_mtime
    assert 'a{job="job"} 1' in merge_texts(read_metric_files(tmp_path, written))
    silent = merge_texts(read_metric_files(tmp_path, written + SILENT_S))
    assert 'b_total{job="job"} 2' in silent
    assert "a{" not in silent
    assert merge_texts(read_metric_files(tmp_path, written + DELETE_AFTER_S)) == ""
    delete_stale_files(tmp_path, written + DELETE_AFTER_S - 1)
    assert list(tmp_path.iterdir())
    delete_stale_files(tmp_path, written + DELETE_AFTER_S)
    assert not list(tmp_path.iterdir())


def test_labels_are_inserted_before_a_sample_s_own() -> None:
    text = '# HELP a {x} 1\na 1.0\na_bucket{le="+Inf",x="a b{"} 2\nvllm:b{} 3\n'
    wanted = '# HELP a {x} 1\na{j="1"} 1.0\na_bucket{j="1",le="+Inf",x="a b{"} 2\nvllm:b{j="1",} 3\n'
    assert add_labels(text, 'j="1"') == wanted


def test_a_folder_that_another_user_may_have_created_is_not_written_to(port: int, tmp_path: Path) -> None:
    address = MetricsAddress("job", "127.0.0.1", port)
    address.folder.symlink_to(tmp_path)
    try:
        telemetry = Telemetry(address, "driver", PERIOD_S)
        telemetry.recorder.record("step", 1)
        telemetry.close()
    finally:
        address.folder.unlink()
    assert list(tmp_path.iterdir()) == []


def test_the_environment_sets_the_port_and_the_host() -> None:
    assert MetricsAddress.from_environment("job", local=True, environment={}) == MetricsAddress(
        "job", "127.0.0.1", 9464
    )
    assert MetricsAddress.from_environment("job", local=False, environment={}) == MetricsAddress("job", "0.0.0.0", 9464)
    chosen = {"AGENT_RFT_METRICS_PORT": "9000", "AGENT_RFT_METRICS_HOST": "10.0.0.1"}
    assert MetricsAddress.from_environment("job", local=True, environment=chosen) == MetricsAddress(
        "job", "10.0.0.1", 9000
    )
    assert MetricsAddress.from_environment("job", local=True, environment={"AGENT_RFT_METRICS_PORT": "0"}) is None
    with pytest.raises(UserError, match="AGENT_RFT_METRICS_PORT"):
        MetricsAddress.from_environment("job", local=True, environment={"AGENT_RFT_METRICS_PORT": "off"})
    assert str(os.getuid()) in MetricsAddress("job", "", 9000).folder.name
