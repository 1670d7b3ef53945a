"""Requests as known clients send them: Codex CLI, LiteLLM, inspect-ai, and clients of other servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_rft.actors.runtime.telemetry.recorder import Recorder
from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.inference import chat, responses
from agent_rft.serve.stores.sealed_secrets import FixedSecrets, MasterSecret, SecretBox
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from agent_rft.wire.api_errors import ApiError
from agent_rft.wire.chat_schema import ChatRequest
from agent_rft.wire.request_keys import COUNTED_KEYS, NO_EFFECT, REFUSED_KEYS
from agent_rft.wire.responses_schema import ResponsesRequest
from agent_rft.wire.tool_schema import IGNORED_TYPES
from tests.support.api import body_of, client_of, openai_of
from tests.support.fake_models import FakeModels, call, turn
from tests.support.paths import ROOT

BOX = SecretBox(FixedSecrets((MasterSecret("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="),)))
USER: Any = {"role": "user", "content": "hi"}
IGNORED = "x-agent-rft-ignored"
SHELL = {
    "type": "function",
    "name": "exec_command",
    "description": "Starts a program and returns what it prints.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"cmd": {"type": "string"}, "yield_time_ms": {"type": "number"}},
        "required": ["cmd"],
        "additionalProperties": False,
    },
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files. Write the patch itself, not JSON.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" LF'},
}
GITHUB = {
    "type": "namespace",
    "name": "mcp__github",
    "description": "Tools of the server github.",
    "tools": [{"type": "function", "name": "list_issues", "parameters": {"type": "object"}}],
}
CODEX: dict[str, Any] = {
    "model": "gpt-5-codex",
    "instructions": "You are a coding agent on the user's machine.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [
                {"type": "input_text", "text": "The sandbox is read-only."},
                {"type": "input_text", "text": "The network is off."},
            ],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is in this folder?"}]},
    ],
    "tools": [SHELL, PATCH, {"type": "web_search", "external_web_access": False}, {"type": "local_shell"}, GITHUB],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "service_tier": "priority",
    "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
    "text": {"verbosity": "low"},
    "client_metadata": {"x-codex-installation-id": "7f3f2a60-6d0e-4f3c-9f43-1d3c7f9b8a11"},
}
"""A first turn of Codex CLI."""


def http(fake: FakeModels, recorder: Recorder | None = None) -> httpx.AsyncClient:
    trials = TrialFactory(DEFAULT_CONFIG)
    routers = [chat.make_router(fake, trials), responses.make_router(fake, trials, BOX)]
    return client_of(routers, recorder=recorder)


def counted(recorder: Recorder) -> dict[str, float]:
    return {
        sample.labels["key"]: sample.value
        for family in recorder.registry.collect()
        for sample in family.samples
        if sample.name == "agent_rft_api_ignored_keys_total"
    }


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def test_two_turns_of_codex_cli_are_answered_as_a_stream() -> None:
    listing = call("call_a", "exec_command", '{"cmd": "ls"}')
    fake, recorder = FakeModels(turn("I look.", listing, reasoning="a folder"), turn("Two files.")), Recorder()
    async with http(fake, recorder) as client:
        first = await client.post("/v1/responses", json=CODEX)
        assert first.status_code == 200, first.text
        done = [event["item"] for event in events_of(first) if event["type"] == "response.output_item.done"]
        assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
        completed = events_of(first)[-1]
        assert completed["type"] == "response.completed"
        assert [tool["name"] for tool in completed["response"]["tools"]] == ["exec_command"]
        echoed = [{key: value for key, value in item.items() if key != "status"} for item in done]
        parts = [{"type": "input_text", "text": "a.txt"}, {"type": "input_text", "text": "b.txt"}]
        result = {"type": "function_call_output", "call_id": "call_a", "output": parts}
        second = await client.post("/v1/responses", json=CODEX | {"input": [*CODEX["input"], *echoed, result]})
    assert events_of(second)[-1]["response"]["output"][-1]["content"][0]["text"] == "Two files."
    for answer in (first, second):
        assert answer.headers[IGNORED] == "custom, local_shell, namespace, web_search"
    assert counted(recorder) == {"client_metadata": 2}
    sent = fake.bodies[1]
    assert sent.keys() == {
        *("model", "messages", "tools", "tool_choice", "reasoning_effort", "n", "stream", "parallel_tool_calls")
    }
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["exec_command"]
    assert [message["role"] for message in sent["messages"]] == ["system", "developer", "user", "assistant", "tool"]
    assert sent["messages"][3]["reasoning"] == "a folder" and sent["messages"][3]["tool_calls"] == [listing]
    assert sent["messages"][4]["content"] == "a.txt\nb.txt"


async def test_the_official_sdk_sends_a_request_of_codex_and_reads_the_header_of_the_stream() -> None:
    fake = FakeModels(turn("Two files."))
    extra = {"client_metadata": CODEX["client_metadata"]}
    body: Any = {key: value for key, value in CODEX.items() if key not in extra}
    async with http(fake) as client:
        raw = await openai_of(client).responses.with_raw_response.create(**body, extra_body=extra)
        assert raw.headers[IGNORED] == "custom, local_shell, namespace, web_search"
        events: Any = [event async for event in raw.parse()]
    assert events[-1].type == "response.completed" and events[-1].response.output_text == "Two files."


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", sorted(IGNORED_TYPES))
async def test_known_tools_are_dropped_and_named(kind: str, stream: bool) -> None:
    fake = FakeModels(turn("ok"))
    tool = {"type": kind, "name": "t", "server_label": "x", "authorization": "hunter2"}
    chat_tool = {"type": "function", "function": {"name": "exec_command"}}
    async with http(fake) as client:
        for path, body in (
            ("chat/completions", {"messages": [USER], "tools": [tool, chat_tool, tool]}),
            ("responses", {"input": "hi", "tools": [tool, {"type": "function", "name": "exec_command"}, tool]}),
        ):
            answer = await client.post(f"/v1/{path}", json={"model": "m", "stream": stream, **body})
            assert (answer.status_code, answer.headers[IGNORED]) == (200, kind), answer.text
            assert "hunter2" not in answer.text
    assert [body["tools"] for body in fake.bodies] == [[chat_tool], [chat_tool]]


async def test_dropped_tools_alone_mean_no_tools() -> None:
    fake = FakeModels(turn("ok"))
    async with http(fake) as client:
        for choice in ("auto", "none"):
            body = {"model": "m", "tools": [{"type": "web_search"}], "tool_choice": choice}
            for path, more in (("chat/completions", {"messages": [USER]}), ("responses", {"input": "hi"})):
                assert (await client.post(f"/v1/{path}", json=body | more)).status_code == 200
            answer = await client.post("/v1/chat/completions", json={"model": "m", "messages": [USER], "tools": []})
            assert answer.status_code == 200 and IGNORED not in answer.headers
    assert not any(body.get("tools") for body in fake.bodies)


async def test_a_tool_of_an_unknown_type_is_refused_by_name() -> None:
    async with http(FakeModels(turn("ok"))) as client:
        for path, body in (("chat/completions", {"messages": [USER]}), ("responses", {"input": "hi"})):
            tools = [{"type": "web_search"}, {"type": "ro{bot}"}]
            error = body_of(await client.post(f"/v1/{path}", json={"model": "m", "tools": tools, **body}), 400)["error"]
            expected = (
                "tools[1].type: the type 'ro{bot}' is not supported; remove the tool, or describe it as a function"
            )
            assert (error["message"], error["param"]) == (expected, "tools[1].type")


async def test_an_item_of_an_unknown_type_is_refused_by_name() -> None:
    item = {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": "x"}
    async with http(FakeModels(turn("ok"))) as client:
        answer = await client.post("/v1/responses", json=CODEX | {"input": [*CODEX["input"], item]})
    error = body_of(answer, 400)["error"]
    why = "items of the type 'custom_tool_call' are not supported; remove the item, or write it as a message"
    assert (error["message"], error["param"]) == (f"input[2]: {why}", "input[2]")


async def test_the_header_is_also_in_errors_of_the_model() -> None:
    fake = FakeModels(turn(), error=ApiError(503, "later", code="model_unavailable"))
    async with http(fake) as client:
        for stream in (False, True):
            answer = await client.post("/v1/responses", json=CODEX | {"stream": stream})
            assert answer.status_code == 503 and "web_search" in answer.headers[IGNORED]


async def test_web_search_as_an_option_is_named_like_the_tool() -> None:
    fake = FakeModels(turn("ok"))
    async with http(fake) as client:
        body = {"model": "m", "messages": [USER], "web_search_options": {}}
        assert (await client.post("/v1/chat/completions", json=body)).headers[IGNORED] == "web_search_options"
    assert fake.bodies[0].keys() == {"model", "messages", "n", "stream"}


async def test_other_keys_are_ignored_and_counted_under_known_names() -> None:
    fake, recorder = FakeModels(turn("ok")), Recorder()
    unknown = {"temprature": 1, "my/label\n": {"a": [1]}, "_x": "y", "functions": [], "model_extra": 1}
    keys = {key: {"a": "b"} for key in COUNTED_KEYS} | unknown
    typed = ResponsesRequest.model_fields.keys()
    async with http(fake, recorder) as client:
        body = {"model": "m", "input": "hi", **{key: value for key, value in keys.items() if key not in typed}}
        assert body_of(await client.post("/v1/responses", json=body))["output"]
        assert body_of(await client.post("/v1/responses", json={"model": "m", "input": "hi", "temprature": 1}))
        refused = {"model": "m", "input": "hi", "temprature": 1, "stop": ["a"]}
        assert (await client.post("/v1/responses", json=refused)).status_code == 400
        body = {"model": "m", "messages": [USER], "reasoning_effort": "max", "whatever": None, "nothing": 1}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    assert counted(recorder) == dict.fromkeys(COUNTED_KEYS - typed, 1) | {"functions": 1, "other": 3}
    assert [body.keys() for body in fake.bodies] == [
        {"model", "messages", "n", "stream"},
        {"model", "messages", "n", "stream"},
        {"model", "messages", "n", "stream", "reasoning_effort"},
    ]


def test_each_listed_key_is_unknown_to_a_route() -> None:
    both = ChatRequest.model_fields.keys() & ResponsesRequest.model_fields.keys()
    assert not both & (REFUSED_KEYS | COUNTED_KEYS) and not REFUSED_KEYS & COUNTED_KEYS
    assert NO_EFFECT.keys() <= REFUSED_KEYS


@pytest.mark.parametrize("key", sorted(NO_EFFECT))
async def test_a_value_without_an_effect_is_accepted(key: str) -> None:
    fake = FakeModels(turn("ok"))
    async with http(fake) as client:
        for path, body in (("chat/completions", {"messages": [USER]}), ("responses", {"input": "hi"})):
            answer = await client.post(f"/v1/{path}", json={"model": "m", key: NO_EFFECT[key], **body})
            assert answer.status_code == 200, answer.text
    assert key not in fake.bodies[1]


async def test_refused_keys_are_all_named() -> None:
    body = {"model": "m", "input": "hi", "logit_bias": {"5": 1}, "stop": "a", "best_of": 3}
    async with http(FakeModels(turn("ok"))) as client:
        error = body_of(await client.post("/v1/responses", json=body), 400)["error"]
    why = "this server does not support this key, which would change the answer; remove the key"
    assert error["message"] == "; ".join(f"{key}: {why}" for key in ("best_of", "logit_bias", "stop"))
    assert (error["param"], error["code"]) == ("best_of", "unknown_parameter")


def test_the_manual_lists_the_refused_keys_and_the_ignored_tools() -> None:
    section = (
        Path(ROOT, "docs/openai.md").read_text().partition("### Unsupported keys and tools")[2].partition("\n## ")[0]
    )
    assert [name for name in sorted(REFUSED_KEYS | COUNTED_KEYS | IGNORED_TYPES) if f"`{name}`" not in section] == []


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_reasoning_of_earlier_turns_is_read_under_both_names(name: str) -> None:
    fake = FakeModels(turn("ok"))
    messages = [USER, {"role": "assistant", "content": "4", name: "two and two"}, USER]
    async with http(fake) as client:
        answer = await client.post("/v1/chat/completions", json={"model": "m", "messages": messages})
        assert answer.status_code == 200, answer.text
        wrong = [USER, {"role": "assistant", "content": "4", name: 5}]
        error = body_of(await client.post("/v1/chat/completions", json={"model": "m", "messages": wrong}), 400)["error"]
    assert fake.bodies[0]["messages"] == messages
    assert error["param"] == f"messages[1].{name}"
