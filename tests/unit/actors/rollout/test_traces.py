"""Spans of rollouts: one tree from tracers that know nothing of each other, without texts; none by default."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from transformers import AutoTokenizer

from agent_rft.actors.runtime.telemetry.tracing import NO_TRACES, Tracer, create_tracer, current_trace_headers
from agent_rft.actors.tools.dispatcher import Dispatcher
from agent_rft.actors.tools.tool_sessions import ToolSessions
from agent_rft.chat.renderer import Renderer
from agent_rft.spec.endpoints import SessionSpec, ToolSpec
from agent_rft.spec.operator.operator_config import TraceSettings
from agent_rft.types import Rollout
from tests.support.episodes import REQUEST, ScriptedEpisode, call, graded
from tests.support.fakes_http import LOCAL, FakeEndpoint, says
from tests.support.paths import BASE

ALL = TraceSettings(endpoint="http://collector:4318/v1/traces", sampling_ratio=1.0)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(AutoTokenizer.from_pretrained(BASE))


class Spans(InMemorySpanExporter):
    """The spans of one process, and its tracer."""

    def __init__(self, settings: TraceSettings = ALL) -> None:
        super().__init__()
        self.tracer = create_tracer(settings, "a process", exporter=self)

    def all(self) -> Sequence[ReadableSpan]:
        self.tracer.flush()
        return self.get_finished_spans()


async def rollout_of(renderer: Renderer, url: str, engine: Tracer, dispatcher: Tracer) -> Rollout:
    """A rollout with two turns and a call to the tool at `url`."""
    tools = Dispatcher([ToolSpec.model_validate({"name": "cat", "server_url": url})], LOCAL, tracer=dispatcher)
    episode = ScriptedEpisode(renderer, call("a-path-of-the-row"), "7")
    episode.call_tools = tools.call_turn  # type: ignore[method-assign] # the script's tools are the dispatcher's
    try:
        return await graded(episode.runner(tracer=engine))
    finally:
        await tools.close()


async def test_a_rollout_is_one_trace_with_the_spans_of_two_processes(renderer: Renderer) -> None:
    engine, dispatcher = Spans(), Spans()
    async with FakeEndpoint(says({"output": "a secret text"})) as tool:
        rollout = await rollout_of(renderer, tool.url, engine.tracer, dispatcher.tracer)
    *turns, root = engine.all()
    (called,) = dispatcher.all()
    number = int(rollout.trace_id.removeprefix("trace_"), 16)
    assert [span.name for span in (root, *turns, called)] == ["invoke_agent", "chat", "chat", "execute_tool cat"]
    assert {span.context.trace_id for span in (root, *turns, called) if span.context} == {number}
    assert root.parent is None and root.context is not None
    assert {span.parent.span_id for span in (*turns, called) if span.parent} == {root.context.span_id}
    assert called.context is not None
    sent = tool.received[0].headers["traceparent"]
    assert sent == f"00-{number:032x}-{called.context.span_id:016x}-01"
    assert called.attributes is not None and called.attributes["gen_ai.tool.call.id"] == rollout.calls[0].call_id
    assert root.attributes is not None and root.attributes["agent_rft.finish"] == "answer"
    shown = str([dict(span.attributes or {}) for span in (root, *turns, called)])
    assert "secret text" not in shown and "a-path" not in shown and "vorzen" not in shown


async def test_a_rollout_that_is_not_sampled_has_no_span_and_says_so_to_tools(renderer: Renderer) -> None:
    none = ALL.model_copy(update={"sampling_ratio": 1e-30})
    engine, dispatcher = Spans(none), Spans(none)
    async with FakeEndpoint(says({"output": "x"})) as tool:
        await rollout_of(renderer, tool.url, engine.tracer, dispatcher.tracer)
    assert not engine.all() and not dispatcher.all()
    assert tool.received[0].headers["traceparent"].endswith("-00")


async def test_without_a_collector_there_are_no_spans_and_no_headers(renderer: Renderer) -> None:
    async with FakeEndpoint(says({"output": "x"})) as tool:
        await rollout_of(renderer, tool.url, create_tracer(None, "engine-0"), NO_TRACES)
    assert "traceparent" not in tool.received[0].headers and current_trace_headers() == {}


async def test_a_failed_call_and_its_rollout_are_failed_spans_without_the_message(renderer: Renderer) -> None:
    engine, dispatcher = Spans(), Spans()
    episode_tools = Dispatcher(
        [ToolSpec.model_validate({"name": "cat", "server_url": "http://127.0.0.1:9/", "max_retries": 0})],
        LOCAL,
        tracer=dispatcher.tracer,
    )
    episode = ScriptedEpisode(renderer, call("x"))
    episode.call_tools = episode_tools.call_turn  # type: ignore[method-assign] # as above
    await episode.runner(tracer=engine.tracer).run(REQUEST)
    await episode_tools.close()
    (called,), root = dispatcher.all(), engine.all()[-1]
    assert not called.status.is_ok and not root.status.is_ok
    assert called.attributes is not None and called.attributes["error.type"] == "ToolFailed"
    assert root.attributes is not None and "127.0.0.1" not in str(dict(root.attributes)) and not called.events


async def test_the_requests_of_a_session_are_spans_of_its_rollout() -> None:
    spans, number = Spans(), "0123456789abcdef" * 2
    async with FakeEndpoint(says({})) as server:
        spec = SessionSpec.model_validate({"start_url": server.url, "end_url": server.url})
        book = ToolSessions(spec, operator=LOCAL, tracer=spans.tracer)
        with spans.tracer.rollout_span(f"trace_{number}", "invoke_agent"):
            await book.start(f"trace_{number}", {})
        assert await book.close("graded") == 0
    found = {span.name: span for span in spans.all()}
    assert set(found) == {"invoke_agent", "session start", "session end"}
    root = found.pop("invoke_agent")
    sent = [request.headers["traceparent"] for request in server.received]
    for name, header in zip(("session start", "session end"), sent, strict=True):
        span = found[name]
        assert span.context is not None and span.parent is not None and root.context is not None
        assert header == f"00-{number}-{span.context.span_id:016x}-01" and span.parent.span_id == root.context.span_id


def test_the_end_does_not_wait_for_a_collector_that_does_not_answer() -> None:
    answers = threading.Event()

    class Hanging(InMemorySpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            answers.wait()
            return super().export(spans)

    exporter = Hanging()
    tracer = create_tracer(ALL, "a process", exporter=exporter)
    with tracer.rollout_span("trace_" + "1" * 32, "invoke_agent"):
        pass
    assert not tracer.flush(within_s=0.05)
    answers.set()
    assert tracer.flush() and [span.name for span in exporter.get_finished_spans()] == ["invoke_agent"]
    assert NO_TRACES.flush()


def test_an_id_that_is_not_ours_has_no_span() -> None:
    spans = Spans()
    for trace_id in ("", "trace_1", "trace_" + "0" * 32, "x" * 10_000):
        with spans.tracer.rollout_span(trace_id, "invoke_agent") as root, spans.tracer.span(trace_id, "chat") as span:
            assert not root.is_recording() and not span.is_recording()
    assert not spans.all()
