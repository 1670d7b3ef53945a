"""Panels over three hours of a job whose steps take ten minutes, in a Prometheus that others use too.

The history is what the driver's own sink exports, minute by minute, and a few series of libraries and of Ray.
"""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from actors.runtime.exporter import labelled
from cluster.observability.dashboards.fleet import FLEET_DASHBOARD
from cluster.observability.dashboards.grafana import WINDOWS
from cluster.observability.files import DASHBOARDS
from cluster.run.metrics_sink import MetricsSink
from tests.support.builders import group_request, rollout
from tests.support.events import run_event
from tests.support.prometheus import Prometheus, binary, prometheus
from trainer.events import CheckpointSaved, PhaseBegan, StepDone
from trainer.metrics import METRICS
from trainer.types import Group

STEP_S, HOURS, SAMPLE_S = 600, 3, 30
STEP = {
    name: 1.0 for name, metric in METRICS.items() if not metric.live and metric.kind != "file" and "<" not in name
} | {
    "time_step_s": float(STEP_S),
    "finish/answer": 8.0,
    "groups_without_signal/equal": 1.0,
    "call_errors/over_budget": 1.0,
}
STEP |= {"grader/right/score_mean": 0.5, "tool/search/errors": 2.0}
OURS = """\
agent_rft_process_up{job="ours",process="driver"} 1
process_resident_memory_bytes{job="ours",process="driver"} 1e9
process_cpu_seconds_total{job="ours",process="driver"} %(s)d
ray_node_mem_used{job="agent-rft-ray",ip="10.0.0.1"} 1e9
ray_node_cpu_utilization{job="agent-rft-ray",ip="10.0.0.1"} 50
ray_spill_manager_objects_bytes{job="agent-rft-ray",NodeAddress="10.0.0.1",State="Spilled"} 0
"""
"""What libraries and Ray export of our processes and nodes, as a running Ray 2.60 does."""
THEIRS = OURS.replace("ours", "theirs").replace("agent-rft-ray", "ray").partition("\n")[2]
PER_STEP = [expr for board in DASHBOARDS for expr in board.expressions if "$steps" in expr]
NOT_IN_THE_DRIVER = ("agent_rft_engine_pause_seconds", "agent_rft_rank_seconds")
PANELS_OF_NODES = ("Memory by process", "CPU cores in use by process", "CPU usage by node", "Memory in use by node")


def exported(folder: Path, start: float) -> Iterator[tuple[float, str]]:
    """The samples of each moment, with its Unix time."""
    now = start
    sink = MetricsSink(None, folder, clock=lambda: now)
    sink.event(run_event(PhaseBegan(phase="training")))
    for second in range(0, HOURS * 3600, SAMPLE_S):
        now = start + second
        if second and second % STEP_S == 0:
            step = second // STEP_S
            request = group_request(step, 8)
            rollouts = tuple(rollout(request, sample, wall_s=60.0 * sample + 1) for sample in range(8))
            sink.groups(f"step-{step:06d}", [Group(request, rollouts)])
            sink.event(run_event(CheckpointSaved(step=step, path="p", num_bytes=1)))
            sink.event(run_event(StepDone(step=step, total_steps=18, metrics=STEP | {"step": float(step)})))
        text = labelled(generate_latest(sink.recorder.registry).decode(), 'job="ours",process="driver"')
        yield now, "".join(line for line in text.splitlines(keepends=True) if line[0] != "#") + OURS % {"s": second}
        yield now, THEIRS % {"s": second}


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


def test_panels_of_memory_cores_and_nodes_show_nobody_elses(history: tuple[Prometheus, float]) -> None:
    server, start = history
    panels = {panel.title: panel for _, row in FLEET_DASHBOARD.rows for panel in row}
    for title in (*PANELS_OF_NODES, "Spilled to disk by node"):
        (query,) = panels[title].queries
        found = server.history(shown(query.expr), start + 3600, start + 7200, 60)
        assert len(found) == 1, title
        assert found[0]["metric"].get("job") in ("ours", "agent-rft-ray", None), title
