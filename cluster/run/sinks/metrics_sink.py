"""Prometheus metrics of the driver: metrics of steps and rollouts, checkpoint age and free disk space.

Metrics with `is_live` are left out, because other processes export them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress, Telemetry
from agent_rft.actors.runtime.telemetry.recorder import Recorder
from agent_rft.actors.runtime.telemetry.tracing import NO_TRACES, Tracer
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.events import (
    VALIDATION,
    CheckpointSaved,
    CheckpointStoreFailed,
    Evaluated,
    JobEnded,
    LearnerRestarted,
    Level,
    Outcome,
    PhaseStarted,
    StepDone,
    StoreAction,
    TrackerFailed,
)
from agent_rft.metrics import METRICS, find_metric
from agent_rft.stored_events import RunEvent
from agent_rft.types import Evaluation, Group, Rollout

GROWING = ("counter", "histogram")


class MetricsSink:
    """Sink that records the driver's metrics, and exports them unless `address` is None. Call `close` at the end."""

    def __init__(
        self,
        address: MetricsAddress | None,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        tracer: Tracer = NO_TRACES,
    ) -> None:
        """Create the sink of a run. `tracer` decides which rollouts are traced and become exemplars."""
        self.address = address
        self._telemetry = None if address is None else Telemetry(address, "driver")
        self.recorder = Recorder() if self._telemetry is None else self._telemetry.recorder
        self._folder = folder
        self._clock = clock
        self.tracer = tracer
        self._saved_at: float | None = None
        """Time of the last checkpoint, or of the start of training if there is no checkpoint yet. None outside of
        training."""
        # Exported as 0 from the start, so that Prometheus sees the first event as an increase.
        growing = [name for name, metric in METRICS.items() if not metric.is_live and metric.kind in GROWING]
        trained = (name.replace("<split>", "train") for name in growing)
        self.recorder.initialize(*(name for name in trained if "<" not in name))
        for level in get_args(Level):
            self.recorder.record(f"events/{level}", 0.0)
        self.recorder.initialize(
            "learner_restarts", *(f"checkpoint_store_failures/{action}" for action in get_args(StoreAction))
        )
        for outcome in get_args(Outcome):
            self.recorder.record(f"jobs_ended/{outcome}", 0.0)
        for step, evaluation in RunFolder(folder).validations():  # a resumed run has earlier validations
            self._record_validation(step, evaluation)
        self.recorder.add_source(self._read_disk_usage)
        self.recorder.add_source(self._read_checkpoint_age)

    def handle_event(self, event: RunEvent) -> None:
        happened = event.event
        if happened is None or not happened.is_quiet:
            self.recorder.record(f"events/{event.level}")
        match happened:
            case StepDone(metrics=metrics):
                self._record_step(metrics)
            case Evaluated(name=name, step=step, evaluation=evaluation) if name == VALIDATION:
                self._record_validation(step, evaluation)
            case PhaseStarted(phase="training"):
                self._saved_at = self._clock()
            case CheckpointSaved(num_bytes=size):
                self._saved_at = self._clock()
                self.recorder.record("checkpoint_bytes", float(size))
            case PhaseStarted(phase="grading"):
                self._saved_at = None  # all steps are in a checkpoint
            case LearnerRestarted():
                self.recorder.record("learner_restarts")
            case CheckpointStoreFailed(action=action):
                self.recorder.record(f"checkpoint_store_failures/{action}")
            case TrackerFailed(tracker=tracker):
                self.recorder.record(f"tracker_failures/{tracker}")
            case JobEnded(outcome=outcome):
                self._saved_at = None
                self.recorder.record(f"jobs_ended/{outcome}")

    def _record_validation(self, step: int | None, evaluation: Evaluation) -> None:
        if step == 0:
            self.recorder.record("baseline_valid_mean_reward", evaluation.reward)

    def _record_step(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            found = find_metric(name)
            if found is not None and not METRICS[found[0]].is_live:
                self.recorder.record(name, value)

    def handle_groups(self, name: str, groups: Sequence[Group]) -> None:
        for group in groups:
            for rollout in group.rollouts:
                self._record_rollout(group.request.purpose, rollout)

    def close(self) -> None:
        if self._telemetry is not None:
            self._telemetry.close()

    def _record_rollout(self, split: str, rollout: Rollout) -> None:
        record = self.recorder.record
        record(f"reward/{split}", rollout.reward)
        record(f"grade/{split}", rollout.grade.value)
        record(f"rollout_calls/{split}", len(rollout.calls))
        for turn in rollout.turns:
            record(f"turn_calls/{split}", len(turn.calls))
        tokens = {
            "prompt": rollout.num_prompt,
            "completion": rollout.num_sampled,
            "reasoning": rollout.reasoning_tokens,
            "tool": rollout.num_tokens - rollout.num_prompt - rollout.num_sampled,
        }
        for kind, count in tokens.items():
            record(f"rollout_tokens/{split}/{kind}", count)
        record(f"rollout_wall_s/{split}", rollout.wall_s, self.tracer.find_sampled_id(rollout.trace_id))
        record(f"rollout_busy_s/{split}", rollout.busy_s)

    def _read_disk_usage(self) -> dict[str, float]:
        try:
            usage = shutil.disk_usage(self._folder)
        except OSError:  # the folder was removed
            return {}
        return {"disk_free_bytes": float(usage.free), "disk_total_bytes": float(usage.total)}

    def _read_checkpoint_age(self) -> dict[str, float]:
        saved = self._saved_at  # read once: this runs in another thread
        return {} if saved is None else {"checkpoint_age_s": self._clock() - saved}
