"""A turn's tool calls, against real servers."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from agent_rft.actors.endpoints.client import collect_process_stats
from agent_rft.actors.endpoints.endpoint_statistics import merge_stats, to_endpoint_metrics
from agent_rft.actors.runtime.timing import Timing
from agent_rft.actors.tools.dispatcher import MAX_ERROR_CHARS, Dispatcher
from agent_rft.actors.tools.dispatcher_actor import split_limits
from agent_rft.errors import EndpointRefused, ToolFailed, UserError
from agent_rft.metrics import find_metric
from agent_rft.spec.endpoints import MAX_OUTPUT_BYTES, ToolSpec
from agent_rft.types import ToolCall, ToolResult
from tests.support.fakes_http import LOCAL, FakeEndpoint, FakeTime, Received, hangs, one_by_one, says, until

SECRET = "sk-very-secret-4711"
ITEM = {"messages": [{"role": "user", "content": "hi"}], "reference_answer": 42}
Dispatch = Callable[..., Dispatcher]


def tool(url: str, name: str = "search", **more: object) -> ToolSpec:
    return ToolSpec.model_validate({"name": name, "server_url": url, **more})


def call(number: int = 1, name: str = "search") -> ToolCall:
    return ToolCall(f"call_{number}", name, f'{{"query": {number}}}')


@pytest.fixture
async def dispatch() -> AsyncIterator[Dispatch]:
    """A factory of dispatchers, which closes them after the test."""
    made = []

    def make(*tools: ToolSpec, timing: Timing | None = None) -> Dispatcher:
        made.append(Dispatcher(tools, LOCAL, timing or FakeTime().timing()))
        return made[-1]

    yield make
    for dispatcher in made:
        await dispatcher.close()


async def one(dispatcher: Dispatcher) -> ToolResult:
    [result] = await dispatcher.call_turn("trace_1", ITEM, [call()])
    return result


async def test_the_request_is_that_of_the_wire_contract(dispatch: Dispatch) -> None:
    async with FakeEndpoint(says({"output": "found"})) as server:
        result = await one(dispatch(tool(server.url, headers={"Authorization": f"Bearer {SECRET}"})))
    [received] = server.received
    assert received.body == {
        "type": "function_call",
        "id": "call_1",
        "call_id": "call_1",
        "name": "search",
        "arguments": '{"query": 1}',
        "trace_id": "trace_1",
        "item": ITEM,
    }
    assert received.headers["Idempotency-Key"] == "call_1"
    assert received.headers["Authorization"] == f"Bearer {SECRET}"
    assert received.headers["Content-Type"] == "application/json"
    assert (result.call_id, result.output, result.error, result.retries) == ("call_1", "found", None, 0)
    assert not result.truncated


async def test_calls_of_a_turn_are_concurrent_and_results_keep_their_order(dispatch: Dispatch) -> None:
    together = asyncio.Barrier(4)
    answered = [asyncio.Event() for _ in range(5)]

    async def behave(request: Received) -> web.StreamResponse:
        number = int(request.body["call_id"][-1])
        await together.wait()  # returns when all four requests have arrived
        if number < 4:  # answers in reverse order
            await answered[number + 1].wait()
        answered[number].set()
        return web.json_response({"output": f"answer {number}"})

    async with FakeEndpoint(behave) as server:
        tools = [tool(server.url), tool(server.url, "lookup")]
        calls = [call(1), call(2, "lookup"), call(3), call(4)]
        results = await dispatch(*tools, timing=Timing()).call_turn("trace_1", ITEM, calls)
    assert [(result.call_id, result.output) for result in results] == [
        (f"call_{n}", f"answer {n}") for n in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({"a": [1, None]}, '{"a": [1, null]}'),
        (3, "3"),
        (None, ""),
        ("né", "né"),
        ("", ""),
        ("\ud800", "?"),
        ("null, NaN and Infinity", "null, NaN and Infinity"),
        ('[{"type": "text", "text": "a"}]', '[{"type": "text", "text": "a"}]'),
        ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b", "annotations": []}], "a\nb"),
        ({"content": [{"type": "text", "text": "a"}]}, "a"),
        ({"content": [{"type": "text", "text": "a"}], "isError": False, "structuredContent": {"a": 1}}, "a"),
        ({"content": [], "isError": False}, ""),
        ([], "[]"),
        ({"content": []}, '{"content": []}'),
        ({"content": "a"}, '{"content": "a"}'),
        ([{"type": "text"}], '[{"type": "text"}]'),
        ([{"type": "file", "path": "a.txt"}], '[{"type": "file", "path": "a.txt"}]'),
        ([{"type": "text", "text": "a"}, 3], '[{"type": "text", "text": "a"}, 3]'),
        ([{"type": ["text"], "text": "a"}], '[{"type": ["text"], "text": "a"}]'),
        (
            {"content": [{"type": "text", "text": "a"}], "page": 2},
            '{"content": [{"type": "text", "text": "a"}], "page": 2}',
        ),
    ],
)
async def test_outputs_are_shown_as_text_or_json(dispatch: Dispatch, output: object, text: str) -> None:
    async with FakeEndpoint(says({"type": "function_call_output", "output": output})) as server:
        assert (await one(dispatch(tool(server.url)))).output == text


IMAGE = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ([IMAGE], "image"),
        ([{"type": "text", "text": "a page"}, IMAGE], "image"),
        ({"content": [IMAGE], "isError": False}, "image"),
        ([{"type": "image_url", "image_url": {"url": "http://x/y.png"}}], "image_url"),
        ([{"type": "input_image", "image_url": "http://x/y.png"}], "input_image"),
        ([{"type": "input_file", "file_id": "file-1"}], "input_file"),
        ([{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}], "audio"),
        ([{"type": "resource", "resource": {"uri": "file:///a", "text": "a"}}], "resource"),
    ],
)
async def test_the_model_reads_an_error_for_a_part_that_is_not_text(
    dispatch: Dispatch, output: object, kind: str
) -> None:
    async with FakeEndpoint(says({"output": output})) as server:
        dispatcher = dispatch(tool(server.url))
        result = await one(dispatcher)
    assert (result.error, result.output) == (
        "tool_error",
        f"Error: the output has a part of the type '{kind}', but the model reads only text.",
    )
    assert dispatcher.stats()["search"]["errors"] == {"unsupported_part": 1}


async def test_an_error_in_the_format_of_mcp_is_shown_to_the_model(dispatch: Dispatch) -> None:
    output = {"content": [{"type": "text", "text": "no such page"}], "isError": True}
    async with FakeEndpoint(says({"output": output})) as server:
        dispatcher = dispatch(tool(server.url))
        result = await one(dispatcher)
    assert (result.error, result.output) == ("tool_error", "no such page")
    assert dispatcher.stats()["search"]["errors"] == {"tool_error": 1}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"output": NaN}', "NaN is not a JSON number"),
        ('{"output": {"price": -Infinity}}', "-Infinity is not a JSON number"),
        ('{"output": "1", "cost": Infinity}', "Infinity is not a JSON number"),
        ('{"output": 1e999}', "the number 1e999 is too large"),
        ('{"output": %s}' % ("9" * 5_000), "has 5,000 digits"),
    ],
)
async def test_a_number_that_is_not_json_fails_the_call(dispatch: Dispatch, body: str, reason: str) -> None:
    async with FakeEndpoint(says(body)) as server:
        dispatcher = dispatch(tool(server.url))
        with pytest.raises(ToolFailed, match=reason):
            await one(dispatcher)
    assert dispatcher.stats()["search"]["errors"] == {"bad_answer": 1}


@pytest.mark.parametrize("body", ["plain text", "", ["output"], {"result": "x"}, '{"output": "cut o', "[" * 100_000])
async def test_a_2xx_without_output_is_a_failure_of_the_tool(dispatch: Dispatch, body: object) -> None:
    async with FakeEndpoint(says(body)) as server:
        dispatcher = dispatch(tool(server.url))
        with pytest.raises(ToolFailed, match=r'tool .search. .*not a JSON object such as \{"output"'):
            await one(dispatcher)
    assert len(server.received) == 1
    assert dispatcher.stats()["search"]["errors"] == {"bad_answer": 1}


async def test_a_4xx_is_shown_to_the_model(dispatch: Dispatch) -> None:
    async with FakeEndpoint(says("no document 17", 404)) as server:
        result = await one(dispatch(tool(server.url)))
    assert (result.error, result.output) == ("tool_error", "Error: HTTP 404 Not Found. no document 17")


async def test_the_text_of_a_4xx_is_truncated_and_redacted(dispatch: Dispatch) -> None:
    async with FakeEndpoint(says(f"bad token {SECRET} " + "x" * 5_000, 400)) as server:
        result = await one(dispatch(tool(server.url, headers={"Authorization": f"Bearer {SECRET}"})))
    assert "bad token [redacted]" in result.output
    assert len(result.output) < MAX_ERROR_CHARS + 100
    assert result.truncated


async def test_a_4xx_with_output_shows_the_output(dispatch: Dispatch) -> None:
    async with FakeEndpoint(says({"output": "give a date as YYYY-MM-DD"}, 422)) as server:
        result = await one(dispatch(tool(server.url)))
    assert (result.error, result.output) == ("tool_error", "give a date as YYYY-MM-DD")


@pytest.mark.parametrize("size", [MAX_OUTPUT_BYTES + 1, 8 * MAX_OUTPUT_BYTES])
async def test_an_output_that_is_too_large_becomes_an_error_that_the_model_sees(dispatch: Dispatch, size: int) -> None:
    async with FakeEndpoint(says({"output": "x" * size})) as server:
        dispatcher = dispatch(tool(server.url))
        result = await one(dispatcher)
    assert (result.error, result.truncated) == ("tool_error", True)
    assert "413" in result.output and len(result.output) < 200
    assert dispatcher.stats()["search"]["errors"] == {"too_large": 1}


async def test_an_output_of_the_allowed_size_passes_whatever_its_size_as_json(dispatch: Dispatch) -> None:
    async with FakeEndpoint(says({"output": "\x01" * MAX_OUTPUT_BYTES})) as server:
        result = await one(dispatch(tool(server.url)))
    assert (result.error, len(result.output)) == (None, MAX_OUTPUT_BYTES)


async def test_a_failed_call_fails_the_turn_and_cancels_the_others(dispatch: Dispatch) -> None:
    async with FakeEndpoint(hangs) as slow, FakeEndpoint(one_by_one([(500, "oops")])) as broken:
        dispatcher = dispatch(tool(slow.url, "slow"), tool(broken.url, "broken", timeout_s=0.2), timing=Timing())
        with pytest.raises(ToolFailed, match="tool 'broken'") as failed:
            await dispatcher.call_turn("trace_1", ITEM, [call(1, "slow"), call(2, "broken")])
        await until(lambda: slow.open_now == 0)
    assert len(slow.received) == 1
    assert dispatcher.stats()["slow"]["cancelled"] == 1
    assert type(pickle.loads(pickle.dumps(failed.value))) is ToolFailed


async def test_a_401_is_raised_without_secrets(dispatch: Dispatch) -> None:
    async with FakeEndpoint(says(f"who is {SECRET}?", 401)) as server:
        with pytest.raises(EndpointRefused) as refused:
            await one(dispatch(tool(server.url + f"?key={SECRET}", headers={"X-Key": SECRET})))
    assert server.url in str(refused.value)
    assert SECRET not in f"{refused.value!r}{refused.value.details}"


async def test_cancelling_a_turn_closes_its_requests(dispatch: Dispatch) -> None:
    async with FakeEndpoint(hangs) as server:
        dispatcher = dispatch(tool(server.url), timing=Timing())
        turn = asyncio.create_task(dispatcher.call_turn("trace_1", ITEM, [call(1), call(2)]))
        await until(lambda: server.open_now == 2)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await until(lambda: server.open_now == 0)
    assert dispatcher.stats()["search"]["cancelled"] == 2


async def test_an_unknown_tool_is_reported_to_the_model_and_the_other_calls_are_made(dispatch: Dispatch) -> None:
    async with FakeEndpoint(says({"output": "found"})) as server:
        calls = [call(1, "serch"), call(2)]
        results = await dispatch(tool(server.url)).call_turn("trace_1", ITEM, calls)
    assert [result.error for result in results] == ["unknown_tool", None]
    assert "'serch'" in results[0].output and "search" in results[0].output


@pytest.mark.parametrize("listed", [{"function": {"name": "list"}}, {"name": "list"}])
async def test_a_tool_that_the_row_offers_and_the_job_lacks_is_not_the_models_mistake(
    listed: dict[str, Any], dispatch: Dispatch
) -> None:
    row = {"tools": [{"type": "function", **listed}]}
    with pytest.raises(ToolFailed, match="the row's tool 'list' has no server"):
        await dispatch(tool("http://localhost/x")).call_turn("t", row, [call(1, "list")])


async def test_the_stats_of_a_process_become_known_metrics(dispatch: Dispatch) -> None:
    async with FakeEndpoint(one_by_one([(429, ""), (200, {"output": "a"}), (404, "none")])) as server:
        dispatcher = dispatch(tool(server.url, "counted"))
        for _ in range(2):
            await dispatcher.call_turn("trace_1", {}, [ToolCall("call_1", "counted", "{}")])
        metrics = to_endpoint_metrics(collect_process_stats())
    wanted = {"calls": 2, "answered": 2, "backpressure_retries": 1, "breaker": 0, "errors/tool_error": 1}
    assert {name: metrics[f"endpoint/tool 'counted'/{name}"] for name in wanted} == wanted
    assert all(find_metric(name) for name in metrics)


async def test_stats_are_counted_per_tool(dispatch: Dispatch) -> None:
    answers = [(500, ""), (200, {"output": "a"}), (404, "none"), (429, ""), (200, {"output": "b"})]
    async with FakeEndpoint(one_by_one(answers)) as server:
        dispatcher = dispatch(tool(server.url), tool(server.url, "unused"))
        retries = [(await one(dispatcher)).retries for _ in range(3)]
    assert retries == [1, 0, 0]
    stats = dispatcher.stats()
    search = stats["search"]
    counted = ("calls", "answered", "failed", "cancelled", "retries", "backpressure_retries", "hedges", "hedges_won")
    assert [search[name] for name in counted] == [3, 3, 0, 0, 1, 1, 0, 0]
    assert search["errors"] == {"tool_error": 1}
    assert (search["breaker"], search["in_flight"], search["queued"], search["limit"]) == ("closed", 0, 0, 14)
    assert search["latency_counts"] == [5, *[0] * 15]
    assert search["bytes_out"] == 5 * len(json.dumps(server.received[0].body))
    assert search["bytes_in"] == len('{"output": "a"}{"output": "b"}none')
    assert stats["unused"]["calls"] == 0


async def test_a_thousand_calls_in_flight_are_cheap(dispatch: Dispatch) -> None:
    async with FakeEndpoint(says({"output": "x"})) as server:
        dispatcher = dispatch(tool(server.url), timing=Timing())
        results = await dispatcher.call_turn("trace_1", {}, [call(i) for i in range(1000)])
    assert [result.call_id for result in results] == [f"call_{i}" for i in range(1000)]
    assert server.most_open <= 64


async def test_a_call_id_that_is_invalid_in_a_header_is_quoted(dispatch: Dispatch) -> None:
    async with FakeEndpoint(says({"output": "x"})) as server:
        await dispatch(tool(server.url)).call_turn("t", {}, [ToolCall("é\r\nX-Evil: 1", "search", "{}")])
    assert server.received[0].headers["Idempotency-Key"] == "%C3%A9%0D%0AX-Evil:%201"
    assert "X-Evil" not in server.received[0].headers


def test_a_tool_with_an_invalid_url_is_a_user_error() -> None:
    with pytest.raises(UserError, match="tool 'search': its URL must start with"):
        Dispatcher([tool("localhost:8000")])


async def test_a_request_over_a_megabyte_is_not_sent_and_reported_to_the_model(dispatch: Dispatch) -> None:
    async with FakeEndpoint(says({"output": "x"})) as server:
        dispatcher = dispatch(tool(server.url))
        (result,) = await dispatcher.call_turn("t", {}, [ToolCall("call_1", "search", "x" * 1_000_001)])
    assert "413" in result.output and result.error == "tool_error"
    assert server.received == []
    assert dispatcher.stats()["search"]["errors"] == {"too_large": 1}


async def test_a_row_that_makes_a_call_too_large_is_never_the_models_mistake(dispatch: Dispatch) -> None:
    item = {"page": "x" * 700_000}
    async with FakeEndpoint(says({"output": "x"})) as server:
        dispatcher = dispatch(tool(server.url))
        with pytest.raises(
            ToolFailed, match=r"tool 'search' .*the request has 1,100,\d+ bytes.* the row alone has 700,012"
        ) as lost:
            await dispatcher.call_turn("t", item, [ToolCall("call_2", "search", "y" * 400_000)])
        assert lost.value.details["kind"] == "request_too_large" and "shorten the row" in lost.value.fix
        (result,) = await dispatcher.call_turn("t", item, [ToolCall("call_3", "search", "z" * 1_000_001)])
    assert result.error == "tool_error" and "Give shorter arguments" in result.output
    assert server.received == []


async def test_a_row_in_chinese_takes_three_bytes_for_each_character(dispatch: Dispatch) -> None:
    item = {"page": "报" * 170_000}
    async with FakeEndpoint(says({"output": "x"})) as server:
        (result,) = await dispatch(tool(server.url)).call_turn("t", item, [ToolCall("call_1", "search", '{"a": "报"}')])
    assert result.error is None and server.received[0].body["item"] == item
    assert len(server.received[0].raw) < 511_000


async def test_a_lone_surrogate_in_arguments_is_sent_as_its_escape(dispatch: Dispatch) -> None:
    async with FakeEndpoint(says({"output": "x"})) as server:
        await dispatch(tool(server.url)).call_turn("t", {}, [ToolCall("call_1", "search", "é\ud800")])
    assert server.received[0].body["arguments"] == "é\ud800"


@pytest.mark.parametrize(
    ("status", "fix"), [(413, "client_max_body_size"), (414, "shorten the endpoint's URL"), (431, "`headers`")]
)
async def test_a_size_that_a_proxy_refuses_is_never_the_models_mistake(
    dispatch: Dispatch, status: int, fix: str
) -> None:
    async with FakeEndpoint(says("<h1>too large for nginx</h1>", status)) as server:
        dispatcher = dispatch(tool(server.url))
        with pytest.raises(
            ToolFailed, match=rf"HTTP {status} .* to a body of 2\d\d bytes.*too large for nginx"
        ) as lost:
            await one(dispatcher)
    assert lost.value.details["kind"] == "request_too_large" and fix in lost.value.fix
    assert dispatcher.stats()["search"]["errors"] == {"request_too_large": 1}


@pytest.mark.parametrize("status", [402, 413])
async def test_what_a_tool_says_to_the_model_is_shown_whatever_the_status(dispatch: Dispatch, status: int) -> None:
    async with FakeEndpoint(says({"output": "choose a smaller file"}, status)) as server:
        result = await one(dispatch(tool(server.url)))
    assert (result.error, result.output) == ("tool_error", "choose a smaller file")


async def test_a_tool_without_credit_is_never_the_models_mistake(dispatch: Dispatch) -> None:
    async with FakeEndpoint(says("pay first", 402)) as server:
        with pytest.raises(ToolFailed, match="the account has no credit; body: pay first"):
            await one(dispatch(tool(server.url)))


async def test_a_403_after_answers_is_shown_to_the_model(dispatch: Dispatch) -> None:
    async with FakeEndpoint(one_by_one([(200, {"output": "x"}), (403, "folder B is closed")])) as server:
        dispatcher = dispatch(tool(server.url))
        await one(dispatcher)
        result = await one(dispatcher)
    assert (result.error, result.output) == ("tool_error", "Error: HTTP 403 Forbidden. folder B is closed")


async def test_a_tool_may_have_a_smaller_output_limit(dispatch: Dispatch) -> None:
    async with FakeEndpoint(says({"output": "x" * 101})) as server:
        assert (await one(dispatch(tool(server.url, max_output_bytes=101)))).error is None
        result = await one(dispatch(tool(server.url, max_output_bytes=100)))
    assert "over 100 bytes" in result.output


async def test_a_rollout_with_many_calls_does_not_block_another_one(dispatch: Dispatch) -> None:
    order: list[str] = []

    async def behave(request: Received) -> web.StreamResponse:
        order.append(request.body["trace_id"])
        await asyncio.sleep(0)
        return web.json_response({"output": "x"})

    async with FakeEndpoint(behave) as server:
        dispatcher = dispatch(tool(server.url, max_concurrency=1), timing=Timing())
        crowd = asyncio.create_task(dispatcher.call_turn("crowd", {}, [call(i) for i in range(50)]))
        await until(lambda: len(order) > 0)
        before = len(order)
        await dispatcher.call_turn("alone", {}, [call()])
        assert len(order) - before < 5
        await crowd
    assert order.count("crowd") == 50


async def test_a_slow_idempotent_tool_is_hedged(dispatch: Dispatch) -> None:
    async def behave(request: Received) -> web.StreamResponse:
        if request.number == 1:
            await asyncio.Event().wait()
        return web.json_response({"output": "x"})

    async with FakeEndpoint(behave) as server:
        dispatcher = dispatch(tool(server.url, idempotent=True, hedge_after_s=1.0))
        assert (await one(dispatcher)).output == "x"
    assert dispatcher.stats()["search"]["hedges_won"] == 1


async def test_an_address_that_the_operator_does_not_allow_ends_the_job() -> None:
    dispatcher = Dispatcher([tool("http://localhost:9/x")])
    with pytest.raises(EndpointRefused, match="allowed_networks in the operator's configuration"):
        await one(dispatcher)
    await dispatcher.close()


@pytest.mark.parametrize(("maximum", "count"), [(64, 3), (5, 5), (7, 2), (1, 1)])
def test_dispatchers_together_keep_the_limits_of_one(maximum: int, count: int) -> None:
    whole = tool("http://tools.example/x", max_concurrency=maximum, rate_limit_per_s=10.0)
    shares = [split_limits(whole, index, count) for index in range(count)]
    assert sum(share.max_concurrency for share in shares) == maximum
    assert min(share.max_concurrency for share in shares) >= 1
    assert sum(share.rate_limit_per_s or 0.0 for share in shares) == pytest.approx(10.0)


async def test_stats_of_several_dispatchers_are_added_up(dispatch: Dispatch) -> None:
    async with FakeEndpoint(says({"output": "x"})) as server, FakeEndpoint(says("none", 404)) as other:
        first, second = dispatch(tool(server.url), tool(other.url, "other")), dispatch(tool(other.url))
        for dispatcher in (first, first, second):
            await one(dispatcher)
        stats = merge_stats([first.stats(), second.stats()])
    assert stats["search"]["calls"] == 3
    assert stats["search"]["errors"] == {"tool_error": 1}
    assert sum(stats["search"]["latency_counts"]) == 3
    assert (stats["search"]["breaker"], stats["search"]["limit"]) == ("closed", 32)
    assert stats["other"]["calls"] == 0
