"""Panels over three hours of a job whose steps take ten minutes, in a Prometheus that others use too.

The history is what the driver's own sink exports, minute by minute, and a few series of libraries and of Ray.
"""

from __future__ import annotations

import math
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

from agent_rft.actors.runtime.telemetry.exporter import add_labels
from agent_rft.cluster.observability.dashboards.grafana import WINDOWS, dashboard_json
from agent_rft.cluster.observability.dashboards.job import JOB_DASHBOARD
from agent_rft.cluster.observability.dashboards.queries import JOBS
from agent_rft.cluster.observability.dashboards.third_party_panels import GPUS as GPU_PANELS
from agent_rft.cluster.observability.monitoring_files import DASHBOARDS
from agent_rft.cluster.run.sinks.metrics_sink import MetricsSink
from agent_rft.events import CheckpointSaved, PhaseStarted, StepDone
from agent_rft.metrics import METRICS
from agent_rft.types import Group
from tests.support.builders import group_request, rollout
from tests.support.events import run_event
from tests.support.prometheus import Prometheus, binary, prometheus

STEP_S, HOURS, SAMPLE_S = 600, 3, 30
STEP = {
    name: 1.0 for name, metric in METRICS.items() if not metric.is_live and metric.kind != "file" and "<" not in name
} | {
    "time_step_s": float(STEP_S),
    "finish/answer": 8.0,
    "zero_variance_groups/equal": 1.0,
    "call_errors/over_budget": 1.0,
}
STEP |= {"grader/right/score_mean": 0.5, "tool/search/errors": 2.0}
OURS = """\
agent_rft_process_up{job="ours",process="driver"} 1
agent_rft_process_up{job="ours",process="engine-0"} 1
agent_rft_baseline_valid_mean_reward{job="ours",process="driver"} 0.2
agent_rft_guard_total{job="ours",process="driver",guard="short"} %(s)d
agent_rft_disk_total_bytes{job="before-ours",process="driver"} 9
process_start_time_seconds{job="before-ours",process="driver"} 100
process_start_time_seconds{job="ours",process="driver"} 900
process_start_time_seconds{job="ours",process="engine-0"} 901
process_resident_memory_bytes{job="ours",process="driver"} 1e9
process_cpu_seconds_total{job="ours",process="driver"} %(s)d
vllm:time_to_first_token_seconds_bucket{job="ours",process="engine-0",le="0.1"} %(s)d
vllm:time_to_first_token_seconds_bucket{job="ours",process="engine-0",le="+Inf"} %(s)d
vllm:generation_tokens_total{job="ours",process="engine-0"} %(s)d
vllm:prompt_tokens_total{job="ours",process="engine-0"} %(s)d
vllm:num_preemptions_total{job="ours",process="engine-0"} 0
vllm:kv_cache_usage_perc{job="ours",process="engine-0"} 0.5
vllm:prefix_cache_hits_total{job="ours",process="engine-0"} %(s)d
vllm:prefix_cache_queries_total{job="ours",process="engine-0"} %(s)d
ray_node_mem_used{job="agent-rft-ray",ip="ours",IsHeadNode="true"} 1e9
ray_node_mem_total{job="agent-rft-ray",ip="ours",IsHeadNode="true"} 4e9
ray_node_cpu_utilization{job="agent-rft-ray",ip="ours"} 50
ray_object_store_used_memory{job="agent-rft-ray",NodeAddress="ours"} 1e9
ray_object_store_available_memory{job="agent-rft-ray",NodeAddress="ours"} 3e9
ray_spill_manager_objects_bytes{job="agent-rft-ray",NodeAddress="ours",State="Spilled"} 0
ray_serve_deployment_replica_healthy{job="agent-rft-ray",application="agent-rft-ours",replica="a"} 1
ray_serve_deployment_request_counter_total{job="agent-rft-ray",application="agent-rft-ours"} %(s)d
ray_serve_deployment_processing_latency_ms_bucket{job="agent-rft-ray",application="agent-rft-ours",le="10"} %(s)d
ray_serve_deployment_processing_latency_ms_bucket{job="agent-rft-ray",application="agent-rft-ours",le="+Inf"} %(s)d
"""
"""What a run exports beside the driver's sink; what libraries and Ray do is as a running Ray 2.60 with vLLM exports."""
RAYS_GPU = ",".join(
    (
        'ip="ours",Version="2.60.0",SessionName="session_1",IsHeadNode="true",RayNodeType="head"',
        'GpuDeviceName="NVIDIA_H100",GpuIndex="0",GpuUuid="GPU-1"',
    )
)
DCGMS_GPU = ",".join(
    (
        'gpu="0",UUID="GPU-1",pci_bus_id="00000000:31:00.0",device="nvidia0",modelName="NVIDIA L4"',
        'Hostname="ours",DCGM_FI_DRIVER_VERSION="580.105.08"',
    )
)
GPUS = f"""\
ray_node_gpus_utilization{{job="agent-rft-ray",{RAYS_GPU}}} 97
ray_node_gram_used{{job="agent-rft-ray",{RAYS_GPU}}} 70000
ray_node_gpu_power_milliwatts{{job="agent-rft-ray",{RAYS_GPU}}} 650000
DCGM_FI_DEV_GPU_UTIL{{job="agent-rft-dcgm",{DCGMS_GPU}}} 97
DCGM_FI_DEV_FB_USED{{job="agent-rft-dcgm",{DCGMS_GPU}}} 70000
DCGM_FI_DEV_POWER_USAGE{{job="agent-rft-dcgm",{DCGMS_GPU}}} 650
"""
"""What both exporters report of a GPU, with the names and labels of Ray 2.60 (checked below) and DCGM's exporter 4."""
STRANGE = {"ours": "theirs", "agent-rft-ray": "ray", "agent-rft-dcgm": "dcgm"}
"""The same by others in the same Prometheus, whose processes, targets and nodes have other names."""
LIBRARIES = re.compile(r"\b(vllm:|ray_|process_|DCGM_)")
PER_STEP = [expr for board in DASHBOARDS for _, expr in board.named_expressions if "$steps" in expr]
NOT_IN_THE_DRIVER = ("agent_rft_engine_pause_seconds", "agent_rft_rank_seconds")


def strange(text: str) -> str:
    lines = (line for line in text.splitlines(keepends=True) if not line.startswith("agent_rft_"))
    return re.sub("|".join(STRANGE), lambda found: STRANGE[found[0]], "".join(lines))


def exported(folder: Path, start: float) -> Iterator[tuple[float, str]]:
    """The samples of each moment, with its Unix time."""
    now = start
    sink = MetricsSink(None, folder, clock=lambda: now)
    sink.handle_event(run_event(PhaseStarted(phase="training")))
    for second in range(0, HOURS * 3600, SAMPLE_S):
        now = start + second
        if second and second % STEP_S == 0:
            step = second // STEP_S
            request = group_request(step, 8)
            rollouts = tuple(rollout(request, sample, wall_s=60.0 * sample + 1) for sample in range(8))
            sink.handle_groups(f"step-{step:06d}", [Group(request, rollouts)])
            sink.handle_event(run_event(CheckpointSaved(step=step, path="p", num_bytes=1)))
            sink.handle_event(run_event(StepDone(step=step, total_steps=18, metrics=STEP | {"step": float(step)})))
        text = add_labels(generate_latest(sink.recorder.registry).decode(), 'job="ours",process="driver"')
        yield now, "".join(line for line in text.splitlines(keepends=True) if line[0] != "#")
        libraries = OURS % {"s": second} + GPUS
        yield now, libraries
        yield now, strange(libraries)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, float]]:
    """A Prometheus that has the history, and the time of its start."""
    folder = tmp_path_factory.mktemp("history")
    start = time.time() // 60 * 60 - HOURS * 3600
    families: dict[str, list[str]] = {}
    for now, text in exported(folder, start):
        for sample in text.splitlines():
            families.setdefault(sample.partition("{")[0], []).append(f"{sample} {now}\n")
    samples = folder / "samples"
    samples.write_text("".join(line for lines in families.values() for line in lines) + "# EOF\n")
    command = [binary("promtool"), "tsdb", "create-blocks-from", "openmetrics", samples, folder / "data"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    config = folder / "prometheus.yml"
    config.write_text("{}")
    with prometheus(config, folder / "data") as server:
        yield server, start


def shown(expr: str) -> str:
    """The query as it is sent with the default choices of the page."""
    windows = {f"${name}": choices[0] for name, (_, choices) in WINDOWS.items()}
    for name, value in (windows | {"$job": ".+", "$endpoint": ".+"}).items():
        expr = expr.replace(name, value)
    return expr


def test_no_panel_of_steps_is_blank_with_steps_of_ten_minutes(history: tuple[Prometheus, float]) -> None:
    server, start = history
    begin, end = start + 2 * STEP_S, start + HOURS * 3600 - SAMPLE_S
    queries = [expr for expr in PER_STEP if not any(name in expr for name in NOT_IN_THE_DRIVER)]
    assert len(queries) > 20
    for expr in queries:
        found = server.history(shown(expr), begin, end, 60)
        assert found, expr
        for series in found:
            values = [float(value) for _, value in series["values"]]
            assert len(values) == (end - begin) // 60 + 1, expr
            assert all(map(math.isfinite, values)), expr


def test_no_panel_shows_what_strangers_export(history: tuple[Prometheus, float]) -> None:
    server, start = history
    asked = [expr for board in DASHBOARDS for _, expr in board.named_expressions if LIBRARIES.search(expr)]
    assert len(asked) > 20
    for expr in asked:
        found = server.history(shown(expr), start + 3600, start + 7200, 60)
        assert found, expr
        assert "theirs" not in str(found), expr


def test_each_gpu_panel_shows_each_gpu_by_both_exporters_in_the_same_units(history: tuple[Prometheus, float]) -> None:
    server, start = history
    for panel in GPU_PANELS:
        values = [server.history(shown(query.expr), start + 3600, start + 3600, 60) for query in panel.queries]
        assert [len(series) for series in values] == [1, 1], panel.title
        assert len({series["values"][0][1] for (series,) in values}) == 1, panel.title


def test_rays_exporter_has_these_metrics_of_gpus_with_these_labels() -> None:
    labels = set(re.findall(r"(\w+)=", RAYS_GPU))
    named = {name.removeprefix("ray_") for name in re.findall(r"^ray_\w+", GPUS, re.MULTILINE)}
    for name in named:
        assert set(METRICS_GAUGES[name].view.columns) == labels
    for name in ("node_mem_used", "node_mem_total"):
        assert {"ip", "IsHeadNode"} <= set(METRICS_GAUGES[name].view.columns)


def test_the_newest_job_is_the_first_to_choose(history: tuple[Prometheus, float]) -> None:
    server, start = history
    query = JOBS.query.removeprefix("query_result(").removesuffix(")").replace("$__range", f"{HOURS}h")
    found = server.at(query, start + HOURS * 3600 - SAMPLE_S)
    texts = [f'{{job="{series["metric"]["job"]}"}} {series["value"][1]}' for series in found]
    assert [re.search(JOBS.regex.strip("/"), text)[1] for text in texts] == ["ours", "before-ours"]  # type: ignore[index]
    assert [JOBS.as_single().is_multi, dashboard_json(JOB_DASHBOARD)["templating"]["list"][1]["includeAll"]] == [
        False,
        False,
    ]
