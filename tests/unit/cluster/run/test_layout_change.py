"""A run whose layout changes between its check and its start records the new one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from agent_rft.cluster.checks.check_job import CheckedJob
from agent_rft.cluster.checks.resumption.resume_compat import SettingDifference
from agent_rft.cluster.planning.cluster_plan import plan_cluster
from agent_rft.cluster.planning.placement import PlanRequest
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.run.job_run import JobRun
from agent_rft.cluster.run.run_outputs import RunOutputs
from agent_rft.cluster.run.sinks.metrics_sink import MetricsSink
from agent_rft.cluster.run.stop_signals import StopSignals
from agent_rft.cluster.views.live_view import LiveView
from agent_rft.errors import RftError
from agent_rft.events import SettingChanged, SettingChosen
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from tests.support.builders import job, plan
from tests.support.events import Recording


class Watching(Recording):
    """A server's sink."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = list[CheckedJob]()

    def handle_prepared(self, prepared: CheckedJob) -> None:
        self.seen.append(prepared)


async def test_a_run_records_the_layout_that_it_got(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").touch()
    spec = job(training_file=str(tmp_path / "train.jsonl"))
    request = PlanRequest(spec, (Node("n", cores=64, gpus=8),), None, 1024)
    resumed = SettingDifference("cluster", "other", "before")
    made = CheckedJob(spec, plan(), plan_cluster(request), 1024, cast(Any, None), [], layout_changes=(resumed,))
    got = replace(made, cluster=plan_cluster(replace(request, max_gpus=2)))
    got = replace(got, choices=got.cluster.choices)

    class Actors:
        def __init__(self, *given: Any) -> None:
            self._on_change: Callable[[CheckedJob], None] = given[-1]

        async def start(self) -> None:
            self._on_change(got)
            raise RftError("stop here")

        async def shutdown(self) -> None: ...

    path, console, watch = tmp_path / "run", Console(file=StringIO()), Watching()
    folder, actors = RunFolder(path), Actors
    view, metrics = LiveView(1, console), MetricsSink(None, path)
    folder.write_job(spec, plan(), {"tracker_id": "id-1"})
    outputs = RunOutputs(made, DEFAULT_CONFIG, None, folder, view, metrics, console, watch, reports=False)
    with StopSignals() as signals:
        run = JobRun(made, DEFAULT_CONFIG, outputs, signals, False, [], actors=actors)  # type: ignore[arg-type]  # a fake
        with pytest.raises(RftError):
            await run.train()
        await run.close()
    recorded = json.loads((path / "job.resolved.json").read_text())
    assert recorded["tracker_id"] == "id-1"
    layout = recorded["layout"]
    assert (layout["engines"], layout["learner_ranks"]) == (1, 1)
    assert watch.seen == [got]
    before, changed = [line.event for line in watch.events if isinstance(line.event, SettingChanged)]
    assert (before.setting, before.value, before.previous_value) == ("cluster", "other", "before")
    assert changed.setting == "cluster"
    assert changed.previous_value.startswith("4 engines of 1 GPU and 4 learner ranks, ZeRO stage 0")
    assert changed.value.startswith("1 engine of 1 GPU and 1 learner rank, ZeRO stage 0")
    chosen = [line.event for line in watch.events if isinstance(line.event, SettingChosen)]
    assert chosen[0].reason.startswith("2 of 8 GPUs")
