"""Dispatcher and grader pool as Ray actors: what crosses the process boundary, and how."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import ray

from agent_rft.actors.grading.grader_pool import GraderPoolActor, GraderPoolClient
from agent_rft.actors.rollout.episode import RolloutRequest
from agent_rft.actors.rollout.rollout_groups import GroupRunner
from agent_rft.actors.rollout.rollout_throttle import RolloutThrottle
from agent_rft.actors.runtime.actor_calls import flush_actor_traces
from agent_rft.actors.runtime.telemetry.tracing import create_tracer
from agent_rft.actors.tools.dispatcher_actor import DispatcherActor, DispatcherClient, WorkerSessions, start_dispatchers
from agent_rft.errors import ActorStartFailed, EndpointRefused, GraderFailed, ToolFailed
from agent_rft.spec.endpoints import SessionSpec, ToolSpec
from agent_rft.spec.job import Reinforcement, RolloutLimits
from agent_rft.spec.operator.operator_config import TraceSettings
from agent_rft.types import DiscardedRollout, Grade, Rollout, ToolCall
from tests.support.builders import group_request, rollout
from tests.support.collector import Collector
from tests.support.fakes_http import LOCAL, FakeEndpoint, hangs, says, until

SECRET = "sk-very-secret-4711"
CALLS = [ToolCall("call_1", "search", "{}"), ToolCall("call_2", "search", "{}")]


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False)
    yield
    ray.shutdown()


def tools(url: str) -> list[ToolSpec]:
    values = {"name": "search", "server_url": url, "headers": {"X-Key": SECRET}, "timeout_s": 60.0}
    return [ToolSpec.model_validate(values)]


async def test_a_turn_is_one_message_and_errors_come_back_unchanged(local_ray: None) -> None:
    async with (
        FakeEndpoint(says({"output": "x"})) as good,
        FakeEndpoint(says(SECRET, 401)) as refusing,
        FakeEndpoint(says("no", 403)) as closed,
    ):
        dispatcher = DispatcherClient(DispatcherActor.remote(tools(good.url), LOCAL))
        results = await dispatcher.call_turn("trace_1", {"x": 1}, CALLS)
        assert [(result.call_id, result.output) for result in results] == [("call_1", "x"), ("call_2", "x")]
        assert good.received[0].headers["X-Key"] == SECRET
        assert (await dispatcher.endpoint_stats())["tool 'search'"]["calls"] == 2

        specs = [*tools(refusing.url), *tools(closed.url)]
        specs[1] = specs[1].model_copy(update={"name": "list"})
        refused_by = DispatcherClient(DispatcherActor.remote(specs, LOCAL))
        (forbidden,) = await refused_by.call_turn("trace_1", {}, [ToolCall("call_1", "list", "{}")])
        assert forbidden.error == "tool_error", "the tool has answered the job's check, so it refuses this call alone"
        with pytest.raises(EndpointRefused) as refused:
            await refused_by.call_turn("trace_1", {}, CALLS)
    assert type(refused.value) is EndpointRefused
    assert refused.value.details["kind"] == "refused"
    assert SECRET not in f"{refused.value!r}{refused.value.details}"


async def test_several_dispatchers_share_a_tool_s_limits_and_a_rollout_stays_with_one(local_ray: None) -> None:
    async with FakeEndpoint(says({"output": "x"})) as server:
        spec = tools(server.url)[0].model_copy(update={"max_concurrency": 3})
        actors = start_dispatchers([spec], LOCAL, 5)
        dispatcher = DispatcherClient(*actors)
        for trace_id in ("trace_1", "trace_1", "trace_2", "trace_3", "trace_4", "trace_5", "trace_6", "trace_7"):
            await dispatcher.call_turn(trace_id, {}, CALLS)
        calls = [(await DispatcherClient(actor).endpoint_stats())["tool 'search'"]["calls"] for actor in actors]
        stats = (await dispatcher.endpoint_stats())["tool 'search'"]
    assert len(actors) == 3
    assert sum(calls) == stats["calls"] == 16
    assert sum(count > 0 for count in calls) > 1
    assert stats["limit"] == 3


async def test_cancelling_the_caller_closes_the_requests_in_the_other_process(local_ray: None) -> None:
    async with FakeEndpoint(hangs) as server:
        dispatcher = DispatcherClient(DispatcherActor.remote(tools(server.url), LOCAL))
        turn = asyncio.create_task(dispatcher.call_turn("trace_1", {}, CALLS))
        await until(lambda: server.open_now == 2, within_s=60)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await until(lambda: server.open_now == 0)


async def test_a_dispatcher_s_death_is_raised_as_tool_failure_once_it_has_restarted(local_ray: None) -> None:
    async with FakeEndpoint(hangs) as slow:
        actor = DispatcherActor.remote(tools(slow.url), LOCAL)
        dispatcher = DispatcherClient(actor)
        turn = asyncio.create_task(dispatcher.call_turn("trace_1", {}, CALLS))
        await until(lambda: slow.open_now == 2, within_s=60)
        ray.kill(actor, no_restart=False)
        with pytest.raises(ToolFailed, match="the process of the tool dispatcher was lost"):
            await turn
        assert (await dispatcher.endpoint_stats())["tool 'search'"]["calls"] == 0


async def test_a_restarted_dispatcher_ends_the_sessions_of_the_dead_one(local_ray: None, tmp_path: Path) -> None:
    async with FakeEndpoint(says({"output": "x"})) as server:
        session = SessionSpec(start_url=server.url, end_url=server.url)
        actor = DispatcherActor.remote(tools(server.url), LOCAL, session, tmp_path / "sessions.jsonl")
        dispatcher = DispatcherClient(actor)
        sessions = WorkerSessions(dispatcher, "engine-0/1")
        await sessions.start("trace_1", {"x": 1})
        await sessions.start("trace_2", {"x": 1})
        assert len(await dispatcher.call_turn("trace_1", {"x": 1}, CALLS)) == 2
        sessions.end("trace_1", "graded")
        await until(lambda: server.received[-1].body.get("reason") == "graded")
        ray.kill(actor, no_restart=False)
        kind = ""
        while kind != "session_over":  # the dying process may still answer
            try:
                await dispatcher.call_turn("trace_2", {"x": 1}, CALLS)
            except ToolFailed as failed:
                kind = failed.details["kind"]
        await sessions.start("trace_3", {"x": 1})
        dispatcher.end_owner_sessions("engine-0/1", "engine_failed")
        # Ray does not keep the order of calls to an async actor.
        await until(lambda: server.received[-1].body.get("reason") == "engine_failed")
        assert await dispatcher.close_sessions("job_stopped") == 0
    bodies = [received.body for received in server.received]
    reasons = {body["trace_id"]: body["reason"] for body in bodies if body["type"] == "session_end"}
    assert reasons == {"trace_1": "graded", "trace_2": "job_restarted", "trace_3": "engine_failed"}


async def test_an_actor_that_cannot_restart_ends_the_job(local_ray: None, tmp_path: Path) -> None:
    journal, session = tmp_path / "sessions.jsonl", SessionSpec(start_url="http://127.0.0.1:1")
    actor = DispatcherActor.remote(tools("http://127.0.0.1:1"), LOCAL, session, journal)
    dispatcher = DispatcherClient(actor)
    assert (await dispatcher.endpoint_stats())["tool 'search'"]["calls"] == 0
    journal.unlink()
    journal.mkdir()
    ray.kill(actor, no_restart=False)
    with pytest.raises(ActorStartFailed, match="the tool dispatcher cannot start: IsADirectoryError"):
        while True:
            with suppress(ToolFailed):  # the dying process may still answer
                await dispatcher.call_turn("trace_1", {}, CALLS)
    with pytest.raises(ActorStartFailed):
        await dispatcher.endpoint_stats()


async def test_no_rollout_is_lost_with_a_dead_dispatcher(local_ray: None) -> None:
    first_calls, answer = 16, says({"output": "x"})
    async with FakeEndpoint(lambda r: hangs(r) if r.number <= first_calls else answer(r)) as server:
        actor = DispatcherActor.remote(tools(server.url), LOCAL)
        dispatcher = DispatcherClient(actor)

        async def run(request: RolloutRequest) -> Rollout | DiscardedRollout:
            try:
                await dispatcher.call_turn(f"trace_{request.sample}", {}, CALLS)
            except ToolFailed as failed:
                return DiscardedRollout("", request.task.row_id, request.sample, failed.reason, failed.message)
            return rollout(asked, request.sample)

        asked = group_request()
        groups = GroupRunner(run, RolloutLimits(max_rollout_retries=1), RolloutThrottle(0.5, print), print)
        sampling = asyncio.create_task(groups.sample(asked))
        await until(lambda: server.open_now == first_calls, within_s=60)
        ray.kill(actor, no_restart=False)
        group = await sampling
    assert (len(group.rollouts), len(group.discarded)) == (8, 8)


async def test_grades_and_failures_cross_as_values_and_the_process_imports_no_torch(local_ray: None) -> None:
    texts = {"input": "{{ sample.output_text }}", "reference": "{{ item.x }}"}
    grader = {"type": "string_check", "operation": "eq", **texts}
    actor = GraderPoolActor.remote(Reinforcement.model_validate({"grader": grader}), LOCAL)
    graders = GraderPoolClient(actor)
    assert await graders.grade({"output_text": "1"}, {"x": 1}, "trace_1") == Grade(1.0)
    with pytest.raises(GraderFailed, match=r"item.x") as failed:
        await graders.grade({"output_text": "1"}, {}, "trace_1")
    assert type(failed.value) is GraderFailed
    assert failed.value.details == {"code": "invalid_variable_error", "path": "item.x"}
    loaded = await actor.__ray_call__.remote(lambda _: set(sys.modules))
    assert not loaded & {"torch", "transformers", "vllm", "deepspeed"}


async def test_dispatcher_and_graders_send_the_spans_of_a_rollout_from_their_processes(local_ray: None) -> None:
    texts = {"input": "{{ sample.output_text }}", "reference": "1"}
    grader = {"type": "string_check", "operation": "eq", **texts}
    number = "0123456789abcdef" * 2
    async with Collector() as collector, FakeEndpoint(says({"output": "x"})) as server:
        traces = TraceSettings(endpoint=collector.url, headers={"X-Key": SECRET}, sampling_ratio=1.0)
        operator = LOCAL.model_copy(update={"traces": traces})
        actors = [
            DispatcherActor.remote(tools(server.url), operator),
            GraderPoolActor.remote(Reinforcement.model_validate({"grader": grader}), operator),
        ]
        dispatcher, graders = DispatcherClient(actors[0]), GraderPoolClient(actors[1])
        engine = create_tracer(traces, "engine-0")
        with engine.rollout_span(f"trace_{number}", "invoke_agent"):
            await dispatcher.call_turn(f"trace_{number}", {}, CALLS)
            await graders.grade({"output_text": "1"}, {}, f"trace_{number}")
        await flush_actor_traces(actors)
        assert await asyncio.to_thread(engine.flush)
        await until(lambda: len(collector.spans) == 4, within_s=60)  # a flush that takes too long goes on by itself
        for actor in actors:
            ray.kill(actor)
        await flush_actor_traces(actors)  # they are gone: nothing hangs, nothing is raised
    spans = sorted((span.process, span.name) for span in collector.spans)
    called = ("dispatcher", "execute_tool search")
    assert spans == [called, called, ("engine-0", "invoke_agent"), ("grader-pool", "grade")]
    assert {span.trace_id for span in collector.spans} == {number} and collector.headers["X-Key"] == SECRET
    (root,) = (span for span in collector.spans if not span.parent_id)
    assert {span.parent_id for span in collector.spans if span is not root} == {root.span_id}
    sent = {received.headers["traceparent"] for received in server.received}
    assert sent == {f"00-{number}-{span.span_id}-01" for span in collector.spans if span.name == called[1]}
