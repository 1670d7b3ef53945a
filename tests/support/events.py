"""Events as sinks receive them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent_rft.cluster.run.sinks.event_stream import EventStream, GroupSink
from agent_rft.events import Event
from agent_rft.loop_protocols import Sink
from agent_rft.stored_events import RunEvent

JOB = "job-7"
NOW = 1_800_000_000.0


class Recording:
    """A Sink that keeps its events."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    def handle_event(self, event: RunEvent) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass


def stream_of(
    *sinks: Sink, group_sinks: Sequence[GroupSink] = (), describe: Callable[[Event], str] = str
) -> EventStream:
    """A stream whose clock always returns NOW."""
    return EventStream(JOB, sinks, group_sinks, clock=lambda: NOW, describe=describe)


def run_event(event: Event) -> RunEvent:
    """The event as a stream passes it to sinks."""
    recording = Recording()
    stream_of(recording).emit(event)
    (found,) = recording.events
    return found
