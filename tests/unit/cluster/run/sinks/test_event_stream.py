"""The event stream: all sinks get the same redacted events in order, and none can disturb the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from agent_rft.cluster.run.sinks.event_stream import EventStream
from agent_rft.cluster.run.sinks.plugin_sinks import MAX_WAITING, PluginSink, RunInfo, load_plugins
from agent_rft.events import EngineReplaced, Notice, PhaseStarted, RolloutsProgressed, SinkCutOff, StepDone
from agent_rft.loop_protocols import Sink
from agent_rft.stored_events import RunEvent
from tests.support.events import JOB, NOW, Recording, stream_of

STEP = StepDone(step=3, total_steps=9, metrics={"step": 3.0})


def waited_for(condition: Callable[[], object]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(condition())


def test_events_are_stamped_with_job_step_and_time_and_reach_all_sinks_in_order() -> None:
    first = Recording()

    class Second(Recording):
        pass

    stream = stream_of(first, second := Second())
    stream.emit(Notice(text="before"))
    stream.emit(STEP)
    stream.emit(Notice(text="after"))
    assert first.events == second.events
    assert [(e.job, e.step, e.time) for e in first.events] == [(JOB, 0, NOW), (JOB, 3, NOW), (JOB, 3, NOW)]
    assert [event.message for event in first.events] == ["before", "step 3 of 9 is done", "after"]


def test_two_sinks_of_one_class_both_get_every_event() -> None:
    first, second = Recording(), Recording()
    stream_of(first, second).emit(STEP)
    assert len(first.events) == len(second.events) == 1


def test_sinks_get_redacted_events() -> None:
    sink = Recording()
    stream_of(sink).emit(EngineReplaced(engine="engine-0", reason="https://me:pw-secret@x.example/a?key=q-secret: 500"))
    (event,) = sink.events
    assert "secret" not in str(event) and "x.example/a" in event.message
    assert isinstance(event.event, EngineReplaced) and "secret" not in event.event.reason


def test_a_sink_that_raises_is_cut_off_with_a_warning_and_the_others_continue() -> None:
    class Broken(Recording):
        def handle_event(self, event: RunEvent) -> None:
            raise ValueError("a bug")

    stream = stream_of(Broken(), sink := Recording())
    stream.emit(STEP)
    stream.emit(PhaseStarted(phase="training"))
    assert [event.event for event in sink.events] == [
        STEP,
        SinkCutOff(step=3, sink="Broken", reason="ValueError: a bug"),
        PhaseStarted(step=3, phase="training"),
    ]


# -- third-party sinks -------------------------------------------------------------------------------------------------


class Tracker(Recording):
    """A third-party sink, made by an entry point."""

    made: RunInfo
    closed = False

    def close(self) -> None:
        self.closed = True


TRACKER = Tracker()


def make_tracker(run: RunInfo) -> Sink:
    TRACKER.made = run
    return TRACKER


def test_an_installed_package_adds_a_sink_with_an_entry_point(tmp_path: Path) -> None:
    info = RunInfo(JOB, tmp_path, {"model": "base"}, "id")
    plugins = load_plugins(info, [EntryPoint("tracker", f"{__name__}:make_tracker", "agent_rft.sinks")])
    stream = EventStream(JOB, [], plugins=plugins)
    stream.emit(STEP)
    stream.emit(RolloutsProgressed(purpose="train", ended=1, total=2, in_flight=1))  # for live views only
    stream.close()
    assert [event.event for event in TRACKER.events] == [STEP]
    assert TRACKER.made == info and TRACKER.closed


def test_a_package_that_cannot_be_imported_causes_a_warning(tmp_path: Path) -> None:
    (plugin,) = load_plugins(
        RunInfo(JOB, tmp_path, {}, "id"), [EntryPoint("gone", "no_such_module:make", "agent_rft.sinks")]
    )
    assert waited_for(lambda: plugin.failure)
    stream = EventStream(JOB, [sink := Recording()], plugins=[plugin])
    stream.emit(STEP)
    assert [type(event.event) for event in sink.events] == [StepDone, SinkCutOff]
    assert "No module named 'no_such_module'" in sink.events[1].message


class Misbehaving(Recording):
    """Calls `how` on its second event."""

    def __init__(self, how: Callable[[], object]) -> None:
        super().__init__()
        self.how = how

    def handle_event(self, event: RunEvent) -> None:
        super().handle_event(event)
        if len(self.events) == 2:
            self.how()


def exits() -> Sink:
    raise SystemExit(1)


def test_a_plugin_that_raises_gets_no_more_events() -> None:
    bad = Misbehaving(exits)
    plugin = PluginSink("bad", lambda: bad)
    stream = EventStream(JOB, [sink := Recording()], plugins=[plugin])
    stream.emit(STEP)
    stream.emit(STEP)
    assert waited_for(lambda: plugin.failure)
    stream.emit(STEP)
    stream.emit(STEP)
    assert len(bad.events) == 2
    assert [event.event for event in sink.events if isinstance(event.event, SinkCutOff)] == [
        SinkCutOff(step=3, sink="bad", reason="SystemExit: 1")
    ]


def test_plugins_that_fail_at_the_same_time_are_reported_once_each() -> None:
    plugins = [PluginSink(name, exits) for name in ("one", "two", "three")]
    assert waited_for(lambda: all(plugin.failure for plugin in plugins))
    stream = EventStream(JOB, [sink := Recording()], plugins=plugins)
    stream.emit(STEP)
    stream.close()
    reported = [event.event.sink for event in sink.events if isinstance(event.event, SinkCutOff)]
    assert sorted(reported) == ["one", "three", "two"]


@pytest.mark.parametrize("how", ["hangs", "is slow"])
def test_a_plugin_that_hangs_or_is_slow_is_cut_off_without_blocking_the_run(how: str) -> None:
    released = threading.Event()
    now = [0.0]
    bad = Misbehaving(released.wait)
    plugin = PluginSink("bad", lambda: bad, clock=lambda: now[0])
    stream = EventStream(JOB, [sink := Recording()], plugins=[plugin])
    stream.emit(STEP)
    stream.emit(STEP)
    assert waited_for(lambda: len(bad.events) == 2)
    if how == "hangs":
        now[0] = 31.0
        stream.emit(STEP)
        reason = "one call took longer than 30 s"
    else:
        for _ in range(MAX_WAITING + 1):
            stream.emit(STEP)
        reason = f"it is {MAX_WAITING} events behind"
    cut_off = [event.event for event in sink.events if isinstance(event.event, SinkCutOff)]
    assert cut_off == [SinkCutOff(step=3, sink="bad", reason=reason)]
    stream.close()  # does not wait for it
    released.set()
    assert waited_for(lambda: not plugin._thread.is_alive())
    assert len(bad.events) == 2


def test_closing_a_plugin_has_a_timeout() -> None:
    released = threading.Event()
    bad = Misbehaving(released.wait)
    plugin = PluginSink("bad", lambda: bad, close_timeout_s=0.05)
    for _ in range(2):
        plugin.enqueue_event(RunEvent(JOB, 0, NOW, "info", "m", "", 0, {}))
    plugin.close()
    assert plugin.failure == "it did not finish within 0.05 s"
    released.set()


def test_plugins_close_at_the_same_time() -> None:
    all_close = threading.Barrier(2, timeout=20)

    class Meets(Recording):
        def close(self) -> None:
            all_close.wait()

    EventStream(JOB, [sink := Recording()], plugins=[PluginSink(name, Meets) for name in ("one", "two")]).close()
    assert sink.events == []


def test_the_time_to_close_begins_with_the_end_of_the_events_and_not_with_the_wait() -> None:
    now, released = [0.0], threading.Event()

    class Slow(Recording):
        def close(self) -> None:
            released.wait(5)

    plugin = PluginSink("slow", Slow, clock=lambda: now[0], close_timeout_s=30)
    plugin.end_events()
    now[0] = 30.0
    plugin.close()
    assert plugin.failure == "it did not finish within 30 s"
    released.set()
