"""The outputs of a run and of its resumption."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from agent_rft.cluster.checks.check_job import CheckedJob
from agent_rft.cluster.planning.cluster_plan import plan_cluster
from agent_rft.cluster.planning.placement import PlanRequest
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.run.run_outputs import RunOutputs
from agent_rft.cluster.run.sinks.metrics_sink import MetricsSink
from agent_rft.cluster.views.live_view import LiveView
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from tests.support.builders import job, plan
from tests.support.version_folders import RUN, unpack


async def begin(path: Path) -> str:
    """Begin and end a run in the folder; its id in trackers that is recorded then."""
    (path.parent / "train.jsonl").touch()
    spec = job(training_file=str(path.parent / "train.jsonl"))
    cluster = plan_cluster(PlanRequest(spec, (Node("n", cores=64, gpus=8),), None, 1024))
    made = CheckedJob(spec, plan(), cluster, 1024, cast(Any, None), [])
    console, folder = Console(file=StringIO()), RunFolder(path)
    view, metrics = LiveView(1, console), MetricsSink(None, path)
    outputs = RunOutputs(made, DEFAULT_CONFIG, None, folder, view, metrics, console, None, reports=False)
    outputs.begin(made)
    await outputs.close("done", "")
    id: str = RunFolder(path).job()["tracker_id"]
    return id


async def test_a_resumed_run_keeps_the_id_in_trackers_that_was_made_for_it(tmp_path: Path) -> None:
    for cluster in ("a", "b"):
        (tmp_path / cluster).mkdir()
    ours, theirs = await begin(tmp_path / "a/job"), await begin(tmp_path / "b/job")
    assert ours != theirs and "job" not in (ours, theirs)
    assert await begin(tmp_path / "a/job") == ours


async def test_a_resumed_run_of_0_2_0_records_its_name_as_id_in_trackers(tmp_path: Path) -> None:
    folder = unpack(RUN, tmp_path)
    assert await begin(folder) == folder.name
    assert await begin(folder.rename(tmp_path / "moved")) == folder.name
