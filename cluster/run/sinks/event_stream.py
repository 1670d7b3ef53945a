"""Event stream of a run: adds job, step and time to events, redacts them and passes them to all sinks in order.

    loop, fleet, watchdog, driver --emit--> EventStream --RunEvent--> run folder, live view, Prometheus, store, plugins

No sink can disturb the run: a sink that raises is cut off, and third-party sinks run on separate threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from agent_rft.cluster.records.redaction import to_plain_json
from agent_rft.cluster.run.sinks.plugin_sinks import PluginSink
from agent_rft.events import Event, SinkCutOff
from agent_rft.loop_protocols import Sink
from agent_rft.stored_events import RunEvent, load_run_event, to_event_data
from agent_rft.types import Group

if TYPE_CHECKING:
    from agent_rft.cluster.checks.check_job import CheckedJob


class GroupSink(Protocol):
    """Sink that receives groups of rollouts, to store or count them."""

    def handle_groups(self, name: str, groups: Sequence[Group]) -> None: ...


class RunWatcher(Sink, Protocol):
    """Sink through which a server follows the driver of one of its jobs."""

    def handle_prepared(self, prepared: CheckedJob) -> None:
        """Receive the job after its check and before any event, and again if its layout changes."""


class EventStream:
    """Thread-safe event stream of a run that passes each event to all sinks.

    `job` is the job's name, and `clock` returns Unix seconds. `describe` returns an event's human-readable message.
    """

    def __init__(
        self,
        job: str,
        sinks: Sequence[Sink],
        group_sinks: Sequence[GroupSink] = (),
        plugins: Sequence[PluginSink] = (),
        clock: Callable[[], float] = time.time,
        describe: Callable[[Event], str] = str,
    ) -> None:
        self._job = job
        self._sinks = list(sinks)
        self._group_sinks = group_sinks
        self._plugins = list(plugins)
        self._clock = clock
        self._describe = describe
        self._step = 0
        self._lock = threading.RLock()

    def emit(self, event: Event, *, skip: Sink | None = None) -> None:
        """Pass an event to all sinks except `skip`. The call returns immediately and never raises."""
        with self._lock:
            step = self._step if event.step is None else event.step
            self._step = max(self._step, step)  # a checkpoint may become complete some steps later
            self._deliver(self._to_run_event(replace(event, step=step)), skip)

    def emit_groups(self, name: str, groups: Sequence[Group]) -> None:
        for sink in self._group_sinks:
            sink.handle_groups(name, groups)

    def close(self) -> None:
        """Close all plugin sinks concurrently, within a few seconds. The caller closes the other sinks."""
        for plugin in self._plugins:
            plugin.end_events()
        for plugin in self._plugins:
            plugin.close()
        with self._lock:
            self._report_cut_off()

    def _to_run_event(self, event: Event) -> RunEvent:
        """Return the event as stored: URLs without credentials and query strings, and null for non-finite numbers."""
        message, data = str(to_plain_json(self._describe(event))), to_plain_json(to_event_data(event))
        step = 0 if event.step is None else event.step
        return load_run_event(self._job, step, self._clock(), event.level, message, event.kind, event.VERSION, data)

    def _deliver(self, event: RunEvent, skip: Sink | None) -> None:
        failed: list[SinkCutOff] = []
        for sink in [sink for sink in self._sinks if sink is not skip]:
            try:
                sink.handle_event(event)
            except Exception as error:  # noqa: BLE001 - a bug of one view must not end the training
                self._sinks.remove(sink)
                failed.append(SinkCutOff(sink=type(sink).__name__, reason=f"{type(error).__name__}: {error}"))
        for plugin in self._plugins if event.event is None or not event.event.is_transient else ():
            plugin.enqueue_event(event)
        for cut_off in failed:
            self.emit(cut_off)
        self._report_cut_off()

    def _report_cut_off(self) -> None:
        """Emit an event for each plugin that gets no more events, because it failed or was too slow."""
        failed = next((plugin for plugin in self._plugins if plugin.failure is not None), None)
        if failed is not None:
            self._plugins.remove(failed)
            self.emit(failed.make_cut_off_event())
