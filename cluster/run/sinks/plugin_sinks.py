"""Third-party sinks, which installed packages provide through the entry point `agent_rft.sinks`.

    [project.entry-points."agent_rft.sinks"]
    my_tracker = "my_package:make_sink"      # make_sink(run: RunInfo) -> Sink

Each sink runs on a separate thread. A sink that raises, hangs in a call or falls too far behind is cut off: it gets no
more events. The run never waits for a sink, except for a few seconds at the end.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from agent_rft.events import Event, SinkCutOff
from agent_rft.loop_protocols import Sink
from agent_rft.stored_events import RunEvent

GROUP = "agent_rft.sinks"
MAX_WAITING = 1_000
"""Maximum number of events in the queue of a sink."""
CALL_TIMEOUT_S = 30.0
START_TIMEOUT_S = 180.0
"""Timeout for importing the package and creating the sink. Both can take a long time on a busy cluster."""
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Argument of a sink factory: the run's name and folder, and the resolved job without secrets.

    `tracker_id` is the run's id in experiment trackers. A resumed run keeps its id, and no other run has the same id.
    """

    name: str
    folder: Path
    job: Mapping[str, Any]
    tracker_id: str


class PluginSink:
    """Third-party sink on a separate thread, which receives events through a bounded queue.

    `failure` is the reason why the sink gets no more events, or None. `error` is the exception that the sink raised, if
    any.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Sink],
        clock: Callable[[], float] = time.monotonic,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self.name = name
        self.failure: str | None = None
        self.error: BaseException | None = None
        self._close_timeout_s = close_timeout_s
        self._make = make
        self._clock = clock
        self._queue: queue.Queue[RunEvent | None] = queue.Queue(MAX_WAITING)
        self._busy_since: float | None = None
        self._ended_at: float | None = None
        self._limit_s = START_TIMEOUT_S
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"sink-{name}")
        self._thread.start()

    def enqueue_event(self, event: RunEvent) -> None:
        """Enqueue an event and return immediately."""
        limit_s, since = self._limit_s, self._busy_since  # in this order: the thread sets the limit last
        if self.failure is None and since is not None and self._clock() - since > limit_s:
            self.failure = f"one call took longer than {limit_s:g} s"
        if self.failure is not None:
            return
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self.failure = f"it is {MAX_WAITING} events behind"

    def make_cut_off_event(self) -> Event:
        """Return an event that reports `failure` as the reason for the cut-off."""
        return SinkCutOff(sink=self.name, reason=str(self.failure))

    def end_events(self) -> None:
        """Mark the end of the events. Call this for all sinks before `close`, so that the sinks close concurrently."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self.failure = self.failure or f"it is {MAX_WAITING} events behind"
        self._ended_at = self._clock()

    def close(self) -> None:
        """Wait up to a few seconds for the sink to handle its remaining events and close."""
        if self._ended_at is None:
            self.end_events()
        if self.failure is not None:
            return
        assert self._ended_at is not None
        self._thread.join(max(0.0, self._ended_at + self._close_timeout_s - self._clock()))
        if self._thread.is_alive() and self.failure is None:
            self.failure = f"it did not finish within {self._close_timeout_s:g} s"

    def _run(self) -> None:
        try:
            self._busy_since = self._clock()
            sink = self._make()
            self._busy_since, self._limit_s = None, CALL_TIMEOUT_S
            while self.failure is None and (event := self._queue.get()) is not None:
                self._busy_since = self._clock()
                sink.handle_event(event)
                self._busy_since = None
            sink.close()
        except BaseException as error:  # noqa: BLE001 - third-party code may raise anything, even SystemExit
            self.error = error
            self.failure = self.failure or f"{type(error).__name__}: {error}"


def load_plugins(run: RunInfo, found: Iterable[EntryPoint] | None = None) -> list[PluginSink]:
    """Return one sink per installed entry point. The entry point is loaded and called on the sink's thread."""
    points = entry_points(group=GROUP) if found is None else found

    def make_factory(point: EntryPoint) -> Callable[[], Sink]:
        def make() -> Sink:
            sink: Sink = point.load()(run)
            return sink

        return make

    return [PluginSink(point.name, make_factory(point)) for point in points]
