"""Outputs of one run: its folder, the event stream with all sinks, the report, and the checkpoint uploads."""

from __future__ import annotations

import asyncio

from rich.console import Console

from agent_rft.cluster.checks.check_job import CheckedJob
from agent_rft.cluster.planning.layout import layout_text
from agent_rft.cluster.ray_cluster.ray_job_status import RayJobStatus, check_run_folder, check_stop_wait
from agent_rft.cluster.records.checkpoint_store import CheckpointStore
from agent_rft.cluster.records.redaction import public_job
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.run.checkpoint_upload import CheckpointUploader
from agent_rft.cluster.run.sinks.event_stream import EventStream, RunWatcher
from agent_rft.cluster.run.sinks.metrics_sink import MetricsSink
from agent_rft.cluster.run.sinks.plugin_sinks import RunInfo, load_plugins
from agent_rft.cluster.run.sinks.progress_reports import ProgressReports
from agent_rft.cluster.run.sinks.report_writer import ReportWriter
from agent_rft.cluster.run.sinks.step_traces import StepTraces
from agent_rft.cluster.run.sinks.tracker_sinks import load_trackers
from agent_rft.cluster.run.stop_signals import StopSignals
from agent_rft.cluster.views.live_view import LiveView
from agent_rft.events import JobEnded, JobStarted, Notice, Outcome, SettingChanged
from agent_rft.loop_protocols import Sink
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.trainer.loop.checkpoint import Checkpoints


class RunOutputs:
    """All outputs of a run. Call `begin` first and `close` last.

    `watch` is the sink of the server that started the run; None without a server. If `reports` is true, the report is
    updated during the run.
    """

    def __init__(
        self,
        prepared: CheckedJob,
        operator: OperatorConfig,
        store: CheckpointStore | None,
        folder: RunFolder,
        view: LiveView,
        metrics: MetricsSink,
        console: Console,
        watch: RunWatcher | None,
        reports: bool,
    ) -> None:
        self.folder = folder
        self.view = view
        self.metrics = metrics
        self.console = console
        self.traces = StepTraces(metrics.tracer)
        self.progress = ProgressReports(prepared.plan, len(prepared.validation), len(prepared.test))
        self._watch = watch
        self._status = RayJobStatus(folder.path.name)
        self._report = ReportWriter(folder.path) if reports else None
        sinks: list[Sink] = [folder, view, metrics, self._status, *([] if watch is None else [watch])]
        sinks += [self.progress, *([] if self._report is None else [self._report])]
        self._tracker_id = folder.tracker_id()
        info = RunInfo(folder.path.name, folder.path, public_job(prepared.job), self._tracker_id)
        plugins = [*load_plugins(info), *load_trackers(prepared.job.integrations, operator.trackers, info)]
        self.stream = EventStream(folder.path.name, [*sinks, self.traces], [folder, metrics, self.traces], plugins)
        self._copies = None if store is None else CheckpointUploader(store, folder.path, self.stream.emit)

    def begin(self, prepared: CheckedJob) -> None:
        """Record the job, and emit events for its check: values chosen for `auto`, changed settings, and warnings."""
        self._write_job(prepared)
        self.stream.emit(JobStarted(method=prepared.job.method.type, total_steps=prepared.plan.steps), skip=self.view)
        self._emit_choices(prepared, skip=self.view)  # printed with the plan
        changes = prepared.setting_changes if self._watch is None else ()  # only the operator can change a server's job
        for change in (*changes, *prepared.layout_changes):
            self.stream.emit(
                SettingChanged(setting=change.setting, value=change.new, previous_value=change.old), skip=self.view
            )
        for warning in prepared.warnings:
            self.stream.emit(Notice(text=warning), skip=self.view)  # printed with the plan
        for unsafe in (
            () if self._watch is not None else (check_stop_wait(prepared.stop_time), check_run_folder(self.folder.path))
        ):
            if unsafe is not None:
                self.stream.emit(Notice(text=unsafe))

    def _write_job(self, prepared: CheckedJob) -> None:
        values = prepared.values_to_record() | {"tracker_id": self._tracker_id}
        self.folder.write_job(prepared.job, prepared.plan, values)

    def _emit_choices(self, prepared: CheckedJob, skip: Sink | None = None) -> None:
        for choice in prepared.choices:
            self.stream.emit(choice, skip=skip)

    def change_layout(self, before: CheckedJob, prepared: CheckedJob) -> None:
        """Record a new layout, which was chosen because the free GPUs have changed since the job was checked."""
        was, now = layout_text(before.placement), layout_text(prepared.placement)
        self._write_job(prepared)
        if self._watch is not None:
            self._watch.handle_prepared(prepared)
        self.stream.emit(SettingChanged(setting="cluster", value=now, previous_value=was))
        self._emit_choices(prepared)

    def checkpoints(self) -> Checkpoints:
        """Return the writer of the run's checkpoints. It also uploads them if there is a checkpoint store."""
        return Checkpoints(self.folder.checkpoints, self._copies, shown=self.folder.path / "checkpoints")

    def stop_uploads(self) -> None:
        """Stop uploading to the checkpoint store."""
        if self._copies is not None:
            self._copies.stop()

    async def finish_uploads(self, signals: StopSignals) -> None:
        """Upload the remaining checkpoints to the store; a signal stops the upload."""
        if self._copies is not None:
            with signals.on_first(self._copies.stop):
                await self._copies.finish()

    async def close(self, outcome: Outcome, error: str) -> None:
        """Emit the event that the job has ended, then flush and close the sinks."""
        self.stream.emit(JobEnded(outcome=outcome, error=error))
        await asyncio.to_thread(self.stream.close)
        await self._status.stop()
        self.view.stop()
        await asyncio.to_thread(self.traces.close)
        self.metrics.close()
        self.folder.close()
        if self._report is not None:
            self._report.close()
