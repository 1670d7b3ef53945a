"""Sink that writes events, metrics, checkpoints and progress of a running job to the server's store.

One thread does all writes in order, so that training never waits for the database. Events are already redacted.
The checkpoints in the store mirror the checkpoints on disk.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.cluster.checks.check_job import CheckedJob
from agent_rft.cluster.records.redaction import replace_substrings
from agent_rft.errors import UserError
from agent_rft.events import (
    CheckpointSaved,
    EarlyStopped,
    JobEnded,
    PhaseStarted,
    RolloutDiscarded,
    RolloutsProgressed,
    StepDone,
)
from agent_rft.serve.jobs.processes.wire_metrics import checkpoint_metrics, format_metrics, make_wire_data
from agent_rft.serve.stores.database import DatabaseError, describe_error, is_unavailable
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.model_registry import ModelRegistry
from agent_rft.stored_events import RunEvent
from agent_rft.trainer.loop.checkpoint import list_checkpoints, rank_checkpoints

RETRYING = Retrying(
    retry=retry_if_exception(is_unavailable),
    stop=stop_after_delay(120),
    wait=wait_exponential(0.1, max=5),
    reraise=True,
)
"""Retry policy for writes while the database is unavailable. If all retries fail, the write is dropped."""
STEPS_FOR_ESTIMATE = 20
PROGRESS_EVERY_S = 30.0


class StoreSink:
    """Implementation of RunWatcher (cluster/run/sinks/event_stream.py) that writes one driver's events to the store.

    Clients read these events, so operator-only fields are removed and paths are replaced. `names` maps each path to the
    path's replacement.

    The function `name` returns model ids: `name(step)` for the checkpoint of a step, `name(None)` for the tuned model.
    """

    def __init__(
        self,
        store: JobStore,
        registry: ModelRegistry,
        job_id: str,
        attempt: int,
        base: str,
        owner: str,
        folder: Path,
        name: Callable[[int | None], str],
        names: Mapping[str, str],
    ) -> None:
        self._store = store
        self._registry = registry
        self._job_id = job_id
        self._attempt = attempt
        self._base = base
        self._owner = owner
        self._checkpoints = folder / "checkpoints"
        self._name = name
        self._names = names
        self._settings: ServeSettings | None = None
        self._saved_step = 0
        self._final_step: int | None = None
        self._times: list[float] = []
        self._progressed_at = 0.0
        """Unix seconds of the last event written for clients."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="job-sink")
        self._sync_lock = threading.Lock()

    # -- RunWatcher ----------------------------------------------------------------------------------------------------

    def handle_prepared(self, prepared: CheckedJob) -> None:
        p = prepared
        self._settings = ServeSettings.from_job(p.job, p.plan, p.context_length, p.dialect)

    def handle_event(self, event: RunEvent) -> None:
        match event.event:
            case StepDone(metrics=metrics):
                self._step_done(event, metrics)
                return
            case RolloutsProgressed() if event.time < self._progressed_at + PROGRESS_EVERY_S:
                return
            case JobEnded() | RolloutDiscarded() | PhaseStarted(is_quiet=True):
                return  # the job's state shows the outcome; the other events are too many for the job's event list
        if isinstance(event.event, EarlyStopped):
            self._final_step = event.event.best_step
        self._progressed_at = event.time
        message, data = replace_substrings([*public_event_fields(event)], self._names)
        data = {"kind": event.kind, "version": event.version, "step": event.step, **data}
        self._enqueue_write(lambda: self._store.add_event(self._job_id, event.level, message, data=data))
        if isinstance(event.event, CheckpointSaved):
            self._enqueue_write(self.sync_checkpoints)

    def _step_done(self, event: RunEvent, metrics: dict[str, float]) -> None:
        self._progressed_at = event.time
        data, message = make_wire_data(metrics), format_metrics(metrics)
        self._enqueue_write(
            lambda: self._store.add_event(self._job_id, "info", message, type="metrics", data=data),
        )
        self._times = [*self._times, metrics.get("time_step_s", 0.0)][-STEPS_FOR_ESTIMATE:]
        left_s = (metrics["total_steps"] - metrics["step"]) * median(self._times)
        finish = time.time() + left_s
        self._enqueue_write(lambda: self._store.update_for_driver(self._job_id, self._attempt, estimated_finish=finish))

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def sync_checkpoints(self) -> None:
        """Update the store so that it lists exactly the checkpoints on disk, each with a model.

        Checkpoints that cannot be served as models are left out. A model is added or deleted before its checkpoint. If
        an error occurs in between, the next call completes the change.
        """
        with self._sync_lock:  # both the writer's thread and the end of the job call this method
            self._sync_checkpoints()

    def _sync_checkpoints(self) -> None:
        on_disk = list_checkpoints(self._checkpoints)
        kept = {state.step: (path, state) for path, state in on_disk if state.is_servable}
        known = {c.step: c for c in self._store.checkpoints(self._job_id, limit=1000)[0]}
        for step in known.keys() - kept.keys():
            self._delete_model(known[step].model)
            self._store.drop_checkpoint(self._job_id, step)
        if on_disk:
            latest = on_disk[-1][1]
            # A new checkpoint is progress: drivers that were lost before it no longer count.
            changes = {"failures": 0} if latest.step > self._saved_step else {}
            self._saved_step = latest.step
            self._store.update_for_driver(self._job_id, self._attempt, trained_tokens=latest.trained_tokens, **changes)
        for step, (path, state) in kept.items():
            if step not in known:
                shown = checkpoint_metrics(make_wire_data(state.metrics)) if state.metrics else {"step": float(step)}
                self._registry.add(self._name(step), path, self._base, self._job_id, self._settings, self._owner)
                self._store.add_checkpoint(self._job_id, step, self._name(step), shown)
        best = next((state for _, state in rank_checkpoints(list(kept.values()))), None)
        if best is not None and best.valid_reward is not None and math.isfinite(best.valid_reward):
            self._store.mark_best_checkpoint(self._job_id, best.step)

    def register_final(self) -> str | None:
        """Register the final checkpoint as the tuned model and return its id, or None if there is no checkpoint.

        The final checkpoint is the last one, or the best one if the job stopped early.
        """
        servable = {state.step: path for path, state in list_checkpoints(self._checkpoints) if state.is_servable}
        if not servable:
            return None
        folder = servable[max(servable) if self._final_step is None else self._final_step]
        self._registry.add(self._name(None), folder, self._base, self._job_id, self._settings, self._owner)
        return self._name(None)

    def _delete_model(self, model: str) -> None:
        with suppress(UserError):  # a client has already deleted the model
            self._registry.delete(model)

    def close(self) -> None:
        """Wait for all pending writes."""
        self._writer.shutdown(wait=True)

    def _enqueue_write(self, write: Callable[[], Any]) -> None:
        def write_or_warn() -> None:
            try:
                RETRYING(write)
            except (DatabaseError, OSError, ValueError) as error:
                why = f"{type(error).__name__}: {error}"
                if is_unavailable(error):
                    why = f"the database is unavailable: {describe_error(error)}"
                print(f"warning: a write to the store was dropped: {why}", file=sys.stderr)

        self._writer.submit(write_or_warn)


def public_event_fields(event: RunEvent) -> tuple[str, dict[str, Any]]:
    """Return the event's message and data as clients see them."""
    if event.event is None or not event.event.PRIVATE:
        return event.message, event.data
    private = event.event.PRIVATE
    blank: dict[str, Any] = dict.fromkeys(private, "")
    message = str(replace(event.event, **blank))
    return message, {name: value for name, value in event.data.items() if name not in private}
