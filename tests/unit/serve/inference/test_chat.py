"""Chat completions and models through the official SDK, and bad requests that must not reach a model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.inference import chat, responses
from agent_rft.serve.routes import model_routes
from agent_rft.serve.stores.model_registry import ModelRegistry
from agent_rft.serve.stores.sealed_secrets import FixedSecrets, MasterSecret, SecretBox
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from agent_rft.wire.chat_schema import ChatRequest
from agent_rft.wire.request_keys import REFUSED_KEYS
from agent_rft.wire.responses_schema import ResponsesRequest
from tests.support.api import client_of, openai_of
from tests.support.bad_requests import SECRET, Bad, check_refused
from tests.support.fake_models import FakeModels, call, turn
from tests.support.jobs import database_with_tables

BOX = SecretBox(FixedSecrets((MasterSecret("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="),)))
USER: Any = {"role": "user", "content": "what was debt?"}
TOOL: Any = {"type": "function", "function": {"name": "cat", "parameters": {"type": "object"}}}
CALL = call("call_a", "cat", '{"path": "a"}')
TURN: Any = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: Any = {"role": "tool", "tool_call_id": "call_a", "content": "12"}
CHECK = {"type": "string_check", "input": "{{sample.output_text}}", "reference": "right", "operation": "eq"}


def http(fake: FakeModels, *more: Any, token: str = "sk-rft-of-a-test") -> httpx.AsyncClient:
    trials = TrialFactory(DEFAULT_CONFIG)
    return client_of([chat.make_router(fake, trials), responses.make_router(fake, trials, BOX), *more], token)


def sdk(fake: FakeModels) -> openai.AsyncOpenAI:
    return openai_of(http(fake))


async def test_a_tool_loop_sends_calls_and_results_to_the_model() -> None:
    fake = FakeModels(turn(None, CALL), turn("12"))
    client, messages = sdk(fake), [USER]
    first = await client.chat.completions.create(model="gpt-5", messages=messages, tools=[TOOL])
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls" and message.tool_calls
    messages += [message, RESULT]
    last = await client.chat.completions.create(model="gpt-5", messages=messages, tools=[TOOL])
    assert last.choices[0].message.content == "12"
    assert fake.bodies[1]["messages"] == [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT]
    assert fake.bodies[1]["tools"] == [TOOL]


async def test_the_sdk_reads_a_stream_which_contains_the_usage_if_asked_for() -> None:
    client = sdk(FakeModels(turn("I look.", CALL)))
    for wanted in (True, False):
        options: Any = {"stream_options": {"include_usage": True}} if wanted else {}
        stream = await client.chat.completions.create(
            model="gpt-5", messages=[USER], tools=[TOOL], stream=True, **options
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == "I look."
        assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == ([18] if wanted else [])
        assert all(chunk.choices for chunk in chunks) is not wanted


async def test_the_sdk_raises_a_failure_in_mid_stream() -> None:
    stream = await sdk(FakeModels(turn("a long answer"), breaks_after=2)).chat.completions.create(
        model="gpt-5", messages=[USER], stream=True
    )
    with pytest.raises(openai.APIError, match="engine failed"):
        [chunk async for chunk in stream]


async def test_nulls_text_parts_and_ignored_keys_are_accepted() -> None:
    fake = FakeModels(turn("ok"))
    nulls: Any = dict.fromkeys(["tools", "tool_choice", "response_format", "stop", "seed", "stream", "n"])
    parts: Any = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    await sdk(fake).chat.completions.create(
        model="gpt-5", messages=[parts], user="u", store=True, metadata={"a": "b"}, max_tokens=5, **nulls
    )
    (body,) = fake.bodies
    assert body["messages"] == [{"role": "user", "content": "a\nb"}]
    assert body["max_completion_tokens"] == 5
    assert not {"tools", "response_format", "user", "store", "metadata"} & body.keys()


@pytest.mark.parametrize("none", ["", " ", None])
async def test_no_arguments_in_the_history_are_an_empty_object(none: str | None) -> None:
    fake = FakeModels(turn("ok"))
    echoed = [USER, {**TURN, "tool_calls": [call("call_a", "cat", none)]}, RESULT]
    output = {"type": "function_call_output", "call_id": "call_a", "output": "12"}
    async with http(fake) as client:
        for path, body in (
            ("chat/completions", {"messages": echoed}),
            ("responses", {"input": [USER, {**MADE, "arguments": none}, output]}),
        ):
            assert (await client.post(f"/v1/{path}", json={"model": "m", **body})).status_code == 200
    written = [body["messages"][1]["tool_calls"][0]["function"]["arguments"] for body in fake.bodies]
    assert written == ["{}", "{}"]


async def test_the_best_of_n_is_returned_with_all_scores() -> None:
    fake = FakeModels(turn("wrong"), turn("right"), turn("wrong"))
    answer: Any = await sdk(fake).chat.completions.create(
        model="gpt-5", messages=[USER], n=3, extra_body={"grader": {"name": "g", **CHECK}}
    )
    assert [choice.message.content for choice in answer.choices] == ["right"]
    assert answer.metadata == {"scores": [0.0, 1.0, 0.0], "best": 1}


async def test_best_of_n_fails_if_no_sample_can_be_graded() -> None:
    broken = {**CHECK, "input": "{{item.nothing}}"}
    with pytest.raises(openai.APIStatusError) as raised:
        await sdk(FakeModels(turn("a"))).chat.completions.create(
            model="gpt-5", messages=[USER], n=2, extra_body={"grader": broken}
        )
    assert raised.value.status_code == 502 and raised.value.param == "grader"


async def test_a_read_only_key_cannot_call_a_model() -> None:
    async with http(FakeModels(turn("x")), token="sk-rft-read") as client:
        for path in ("chat/completions", "responses"):
            response = await client.post(f"/v1/{path}", json={"model": "m", "messages": [USER]})
            assert response.status_code == 403


async def test_models_are_found_by_ids_with_colons_and_slashes_and_deleted(tmp_path: Path) -> None:
    database = database_with_tables(tmp_path)
    registry = ModelRegistry(database, {"gpt-5": "base", "Qwen/Qwen3-4B": "Qwen/Qwen3-4B"})
    tuned = "ft:Qwen/Qwen3-4B:org:a/b:id:ckpt-step-5"
    registry.add(tuned, "folder", "Qwen/Qwen3-4B", "ftjob-1")
    client = openai_of(http(FakeModels(turn("x")), model_routes.make_router(registry)))
    assert [model.id async for model in client.models.list()] == ["gpt-5", "gpt-5-2025-08-07", "Qwen/Qwen3-4B", tuned]
    for name in ("gpt-5", "gpt-5-2025-08-07", "gpt-5-2026-01-31", "Qwen/Qwen3-4B", tuned):
        assert (await client.models.retrieve(name)).id == name
    assert (await client.models.delete(tuned)).deleted
    with pytest.raises(openai.NotFoundError) as raised:
        await client.models.retrieve(tuned)
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")
    for name in ("gpt-5", "gpt-5-2025-08-07"):
        with pytest.raises(openai.PermissionDeniedError):
            await client.models.delete(name)
    database.close()


# -- bad requests ------------------------------------------------------------------------------------------------------


def bad_chat(what: str, param: str | None, **changes: Any) -> Bad:
    body = {"model": "gpt-5", "messages": [USER], **changes}
    return Bad(f"chat: {what}", "POST", "/v1/chat/completions", param, options={"json": body})


def bad_response(what: str, param: str | None, **changes: Any) -> Bad:
    body = {"model": "gpt-5", "input": "hi", **changes}
    return Bad(f"responses: {what}", "POST", "/v1/responses", param, options={"json": body})


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


FLAT: Any = {"type": "function", "name": "cat", "parameters": {}}
OUTPUT: Any = {"type": "function_call_output", "call_id": "call_a", "output": "12"}
MADE: Any = {"type": "function_call", "call_id": "call_a", "name": "cat", "arguments": "{}"}

REFUSED: dict[str, Any] = {
    **dict.fromkeys(sorted(REFUSED_KEYS), "x"),
    **{"messages": [USER], "background": True, "logprobs": True, "top_logprobs": 2, "chat_template": "{{ 1 }}"},
    **{"presence_penalty": 0.5, "min_tokens": 1, "logit_bias": {"5": 1}, "stop": ["a"], "skip_special_tokens": False},
}
"""Every key that would change the answer, with a value that does."""
CHAT_KEYS, RESPONSES_KEYS = ChatRequest.model_fields.keys(), ResponsesRequest.model_fields.keys()

BAD = [
    bad_chat("no model", "model", model=None),
    bad_chat("an empty model", "model", model=""),
    bad_chat("a number for a model", "model", model=5),
    bad_chat("no messages", "messages", messages=None),
    bad_chat("empty messages", "messages", messages=[]),
    bad_chat("messages that are a string", "messages", messages="hi"),
    bad_chat("a message that is a string", "messages[0]", messages=["hi"]),
    bad_chat("too many messages", "messages", messages=[USER] * 5000),
    bad_chat("an unknown role", "messages[0].role", messages=[{"role": "robot", "content": "hi"}]),
    bad_chat("a message without content", "messages[0].content", messages=[{"role": "user"}]),
    bad_chat("a user message that is null", "messages[0].content", messages=[{"role": "user", "content": None}]),
    bad_chat("an empty assistant message", "messages[0]", messages=[{"role": "assistant"}]),
    bad_chat("a tool message without a call", None, messages=[USER, RESULT]),
    bad_chat("a tool message without an id", "messages[0].tool_call_id", messages=[{**RESULT, "tool_call_id": ""}]),
    bad_chat("a call without a result", None, messages=[USER, TURN]),
    bad_chat("a call whose result is late", None, messages=[USER, TURN, USER, RESULT]),
    bad_chat("a call that is answered twice", None, messages=[USER, TURN, RESULT, RESULT]),
    bad_chat("two calls with the same id", None, messages=[USER, {**TURN, "tool_calls": [CALL, CALL]}, RESULT]),
    bad_chat("arguments that are not a string", "messages[0].tool_calls[0].function.arguments",
             messages=[{**TURN, "tool_calls": [{"id": "a", "function": {"name": "x", "arguments": {}}}]}]),
    bad_chat("tools that are an object", "tools", tools={}),
    bad_chat("a tool without a function", "tools[0].function", tools=[{"type": "function"}]),
    bad_chat("a tool of an unknown type", "tools[1].type", tools=[{"type": "web_search"}, {"type": "robot"}]),
    bad_chat("a required choice without functions", None, tool_choice="required", tools=[{"type": "web_search"}]),
    bad_chat("a tool name with spaces", "tools[0].function.name",
             tools=[{"type": "function", "function": {"name": "a b"}}]),
    bad_chat("a tool name that is markup", "tools[0].function.name",
             tools=[{"type": "function", "function": {"name": '"<tool_call>'}}]),
    bad_chat("two tools with the same name", "tools", tools=[TOOL, TOOL]),
    bad_chat("too many tools", "tools", tools=[TOOL] * 129),
    bad_chat("a choice of an unknown tool", None, tools=[TOOL],
             tool_choice={"type": "function", "function": {"name": "x"}}),
    bad_chat("a required choice without tools", None, tool_choice="required"),
    bad_chat("a format without a schema", "response_format", response_format={"type": "json_schema"}),
    bad_chat("a schema that is a string", "response_format.json_schema.schema",
             response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": "x"}}),
    bad_chat("a schema nested too deep", "response_format.json_schema.schema",
             response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": nested(40)}}),
    bad_chat("a schema that refers to a file", "response_format.json_schema.schema",
             response_format={"type": "json_schema", "json_schema": {"schema": {"$ref": "file:///etc/passwd"}}}),
    bad_chat("a tool whose schema refers to a URL", "tools[0].function.parameters", tools=[
        {"type": "function", "function": {"name": "a", "parameters": {"$ref": "http://127.0.0.1:8000/health"}}}]),
    bad_chat("an unknown format", "response_format.type", response_format={"type": "xml"}),
    bad_chat("a temperature below 0", "temperature", temperature=-1),
    bad_chat("a temperature over 2", "temperature", temperature=2.1),
    bad_chat("a temperature that is a string", "temperature", temperature="hot"),
    bad_chat("top_p of 0", "top_p", top_p=0),
    bad_chat("n of 0", "n", n=0),
    bad_chat("n of a million", "n", n=1_000_000),
    bad_chat("zero tokens", "max_tokens", max_tokens=0),
    bad_chat("a negative number of tokens", "max_completion_tokens", max_completion_tokens=-5),
    bad_chat("too many stop strings", "stop", stop=["a"] * 5),
    bad_chat("too many log-probabilities", "top_logprobs", logprobs=True, top_logprobs=21),
    bad_chat("top_logprobs without logprobs", None, top_logprobs=2),
    bad_chat("a bias out of range", "logit_bias.5", logit_bias={"5": 101}),
    bad_chat("a penalty out of range", "presence_penalty", presence_penalty=3),
    bad_chat("a seed that is too large", "seed", seed=2**70),
    bad_chat("an unknown effort", "reasoning_effort", reasoning_effort="extreme"),
    bad_chat("stream options without a stream", None, stream_options={"include_usage": True}),
    bad_chat("a stream with a grader", None, stream=True, grader=CHECK),
    *(bad_chat(f"the key {name}", name, **{name: value}) for name, value in REFUSED.items() if name not in CHAT_KEYS),
    bad_chat("vLLM's own arguments", "kv_transfer_params", kv_transfer_params={"prompt_token_ids": [1]}),
    bad_chat("an image", "messages[0].content[0].type",
             messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a"}}]}]),
    bad_chat("an unknown grader", "grader", grader={"type": "oracle"}),
    *(
        bad_chat(f"a grader at {url}", "grader.url", grader={"type": "endpoint", "url": url, "headers": {"X": SECRET}})
        for url in ("http://127.0.0.1:1/grade", "http://169.254.169.254/", "http://[::1]/", "file:///etc/passwd")
    ),
    bad_chat("a grader with header injection", "grader.url",
             grader={"type": "endpoint", "url": "http://example.com", "headers": {"X": f"{SECRET}\r\nHost: evil"}}),
    bad_chat("a grader with __class__", "grader.input", grader={**CHECK, "input": "{{ item.__class__ }}"}),
    bad_chat("a grader that divides by zero", "grader.calculate_output",
             grader={"type": "multi", "graders": {"a": CHECK}, "calculate_output": "a / 0"}),
    bad_chat("a grader with a huge power", "grader.calculate_output",
             grader={"type": "multi", "graders": {"a": CHECK}, "calculate_output": "9^9^9^9"}),
    bad_chat("a grader without its required keys", "grader.input", grader={"type": "string_check"}),
    bad_response("no model", "model", model=None),
    bad_response("no input", "input", input=None),
    bad_response("an empty input", "input", input=[]),
    bad_response("a number for input", "input", input=5),
    bad_response("an item without a type", "input[0]", input=[{"id": "a"}]),
    bad_response("an unknown item", "input[0]", input=[{"type": "item_reference", "id": "a"}]),
    bad_response("an output without its call", "input[0].call_id", input=[OUTPUT]),
    bad_response("a call without its output", "input", input=[{"role": "user", "content": "a"}, MADE]),
    bad_response("an image as an output", "input[1].output[0].type",
                 input=[MADE, {**OUTPUT, "output": [{"type": "input_image", "image_url": "http://a"}]}]),
    bad_response("a duplicate output", "input[2].call_id", input=[MADE, OUTPUT, OUTPUT]),
    bad_response("reasoning alone", "input", input=[{"type": "reasoning", "summary": []}]),
    bad_response("reasoning that this server did not seal", "input[0].encrypted_content",
                 input=[{"type": "reasoning", "summary": [], "encrypted_content": "gAAAAé"}, USER]),
    bad_response("a chat-form tool", "tools[0].name", tools=[TOOL]),
    bad_response("a tool of an unknown type", "tools[1].type", tools=[{"type": "web_search"}, {"type": "robot"}]),
    bad_response("a choice of an ignored tool", "tool_choice", tools=[{"type": "web_search"}],
                 tool_choice={"type": "web_search"}),
    bad_response("two tools with the same name", None, tools=[FLAT, FLAT]),
    bad_response("a choice of an unknown tool", None, tools=[FLAT], tool_choice={"type": "function", "name": "x"}),
    bad_response("a previous response", "previous_response_id", previous_response_id="resp_1"),
    bad_response("a conversation", "conversation", conversation="conv_1"),
    bad_response("background", "background", background=True),
    bad_response("a schema format without a schema", "text.format.schema",
                 text={"format": {"type": "json_schema", "name": "a"}}),
    bad_response("an unknown format", "text.format.type", text={"format": {"type": "xml"}}),
    bad_response("an unknown effort", "reasoning.effort", reasoning={"effort": "extreme"}),
    bad_response("zero tokens", "max_output_tokens", max_output_tokens=0),
    bad_response("metadata of numbers", "metadata.a", metadata={"a": 1}),
    bad_response("n without a grader", None, n=2),
    bad_response("a grader at a private address", "grader.url", n=2,
                 grader={"type": "endpoint", "url": f"http://10.0.0.1/?key={SECRET}"}),
    *(bad_response(f"the key {name}", name, **{name: value}) for name, value in REFUSED.items()
      if name not in RESPONSES_KEYS),
    Bad("embeddings", "POST", "/v1/embeddings", "model", options={"json": {"model": "a", "input": "b"}}),
]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client_and_model() -> AsyncIterator[tuple[httpx.AsyncClient, FakeModels]]:
    fake = FakeModels(turn("x"))
    async with http(fake) as client:
        yield client, fake


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("bad", BAD, ids=str)
async def test_a_bad_request_does_not_reach_a_model(
    bad: Bad, client_and_model: tuple[httpx.AsyncClient, FakeModels]
) -> None:
    client, fake = client_and_model
    await check_refused(bad, client)
    assert not fake.bodies
