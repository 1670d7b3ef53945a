"""/responses through the official SDK: the items that agent loops rely on, and echoed items as the only state."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.inference.responses import make_router
from agent_rft.serve.stores.sealed_secrets import FixedSecrets, MasterSecret, SecretBox
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from agent_rft.wire.api_errors import ApiError
from tests.support.api import TOKEN, client_of, openai_of
from tests.support.fake_models import FakeModels, call, turn

BOX = SecretBox(FixedSecrets((MasterSecret("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="),)))
TOOL: Any = {"type": "function", "name": "cat", "description": "reads", "parameters": {"type": "object"}}
INPUT: Any = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "what was debt?"}]
CALLS = (call("call_a", "cat", '{"path": "a"}'), call("call_b", "cat", '{"path": "b"}'))


def sdk(models: FakeModels) -> openai.AsyncOpenAI:
    return openai_of(client_of([make_router(models, TrialFactory(DEFAULT_CONFIG), BOX)]))


def kinds(items: Any) -> list[str]:
    return [item.type for item in items]


async def test_an_answer_is_one_message_with_its_usage() -> None:
    models = FakeModels(turn("42", reasoning="hm"))
    response = await sdk(models).responses.create(model="gpt-5", input=INPUT, store=False)
    assert kinds(response.output) == ["message"]
    assert response.output_text == "42"
    assert response.status == "completed"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (11, 7, 18)
    assert response.usage.input_tokens_details.cached_tokens == 4
    assert response.usage.output_tokens_details.reasoning_tokens == 3
    assert models.bodies[0]["messages"] == INPUT


async def test_parallel_calls_have_ids_and_directly_follow_their_preamble() -> None:
    models = FakeModels(turn("I look.", *CALLS, reasoning="hm"))
    response = await sdk(models).responses.create(model="gpt-5", input=INPUT, tools=[TOOL], reasoning={"effort": "low"})
    assert kinds(response.output) == ["reasoning", "message", "function_call", "function_call"]
    calls: Any = response.output[2:]
    assert [item.call_id for item in calls] == ["call_a", "call_b"]
    assert [json.loads(item.arguments) for item in calls] == [{"path": "a"}, {"path": "b"}]
    assert all(item.id.startswith("fc_") and item.status == "completed" for item in calls)
    reasoning: Any = response.output[0]
    assert reasoning.summary == [] and reasoning.encrypted_content is None
    assert models.bodies[0]["tools"] == [{"type": "function", "function": {k: TOOL[k] for k in TOOL if k != "type"}}]
    assert models.bodies[0]["reasoning_effort"] == "low"


@pytest.mark.parametrize("content", [None, "", "\n\n"])
async def test_a_response_without_calls_always_has_a_message(content: str | None) -> None:
    response = await sdk(FakeModels(turn(content, reasoning="hm"))).responses.create(
        model="gpt-5", input="hi", reasoning={"effort": "high"}
    )
    assert kinds(response.output) == ["reasoning", "message"]


@pytest.mark.parametrize("content", [None, "\n"])
async def test_white_space_before_calls_does_not_become_a_message(content: str | None) -> None:
    client = sdk(FakeModels(turn(content, *CALLS)))
    response = await client.responses.create(model="gpt-5", input="hi", tools=[TOOL])
    assert kinds(response.output) == ["function_call", "function_call"]
    async with client.responses.stream(model="gpt-5", input="hi", tools=[TOOL]) as stream:
        assert kinds((await stream.get_final_response()).output) == ["function_call", "function_call"]


async def test_a_tool_loop_needs_only_echoed_items_which_return_the_reasoning() -> None:
    models = FakeModels(turn("I look.", *CALLS, reasoning="the user wants debt"), turn("12"))
    client, items = sdk(models), list(INPUT)
    common: Any = {"model": "gpt-5", "tools": [TOOL], "store": False, "include": ["reasoning.encrypted_content"]}
    first = await client.responses.create(input=items, reasoning={"effort": "medium"}, **common)
    assert "wants debt" not in first.model_dump_json()
    items += first.output
    for item in reversed(first.output):  # tools finish in any order
        if item.type == "function_call":
            items.append({"type": "function_call_output", "call_id": item.call_id, "output": f"out {item.call_id}"})
    last = await client.responses.create(input=items, reasoning={"effort": "medium"}, **common)
    assert last.output_text == "12"
    sent = models.bodies[1]["messages"]
    assert sent[2] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning": "the user wants debt",
        "tool_calls": list(CALLS),
    }
    assert {m["tool_call_id"]: m["content"] for m in sent[3:]} == {"call_a": "out call_a", "call_b": "out call_b"}


async def test_nulls_mean_absent_keys() -> None:
    models = FakeModels(turn("ok"))
    body: Any = dict.fromkeys(
        ["tools", "tool_choice", "reasoning", "temperature", "instructions", "include", "previous_response_id"]
    )
    await sdk(models).responses.create(model="gpt-5", input="hi", text={"format": None}, **body)  # type: ignore[typeddict-item]
    assert models.bodies[0].keys() == {"model", "messages", "n", "stream"}


async def test_a_json_schema_reaches_the_model_in_the_form_of_chat_completions() -> None:
    models = FakeModels(turn('{"a": 1}'))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    text: Any = {"format": {"type": "json_schema", "name": "answer", "strict": True, "schema": schema}}
    response = await sdk(models).responses.create(model="gpt-5", input="hi", text=text)
    expected = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    assert models.bodies[0]["response_format"] == expected
    assert response.text is not None and response.text.format is not None and response.text.format.type == "json_schema"


async def test_a_truncated_answer_is_incomplete() -> None:
    response = await sdk(FakeModels(turn("4", finish="length"))).responses.create(model="gpt-5", input="hi")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None and response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == "4"


STREAMS = [
    turn("forty two"),
    turn("", reasoning="hm"),
    turn("I look.", *CALLS, reasoning="the user wants debt"),
    turn(None, *CALLS),
    turn("cut", finish="length"),
]


@pytest.mark.parametrize("choice", STREAMS)
async def test_a_stream_ends_with_the_response_of_the_same_request_without_streaming(choice: dict[str, Any]) -> None:
    client = sdk(FakeModels(choice))
    common: Any = {"model": "gpt-5", "input": "hi", "tools": [TOOL], "reasoning": {"effort": "low"}}
    common["include"] = ["reasoning.encrypted_content"]
    whole = await client.responses.create(**common)
    events = [event async for event in await client.responses.create(stream=True, **common)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    last: Any = events[-1]
    assert last.type == f"response.{whole.status}"
    assert plain(last.response) == plain(whole)
    done: Any = [event for event in events if event.type == "response.output_item.done"]
    assert [event.item for event in done] == last.response.output
    assert [event.output_index for event in done] == list(range(len(done)))


async def test_the_sdks_own_accumulator_reads_a_stream_of_text_and_calls() -> None:
    client = sdk(FakeModels(turn("I look.", *CALLS)))
    text, arguments = "", {0: "", 1: "", 2: ""}
    async with client.responses.stream(model="gpt-5", input="hi", tools=[TOOL]) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.function_call_arguments.delta":
                arguments[event.output_index] += event.delta
        final = await stream.get_final_response()
    assert text == "I look." == final.output_text
    assert [json.loads(arguments[i]) for i in (1, 2)] == [{"path": "a"}, {"path": "b"}]


async def test_reasoning_is_streamed_only_if_asked_for() -> None:
    events = await sdk(FakeModels(turn("42", reasoning="secret thought"))).responses.create(
        model="gpt-5", input="hi", stream=True
    )
    assert "thought" not in "".join([event.model_dump_json() async for event in events])


async def test_a_failure_in_mid_stream_is_an_error_event() -> None:
    models = FakeModels(turn("a long answer"), breaks_after=3)
    events = await sdk(models).responses.create(model="gpt-5", input="hi", stream=True)
    seen: Any = [event async for event in events]
    assert seen[-1].type == "error" and seen[-1].code == "model_unavailable"


async def test_a_failure_before_the_first_chunk_has_its_status_even_in_a_stream() -> None:
    error = ApiError(503, "later", code="model_unavailable", headers={"Retry-After": "7"})
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as raised:
            await sdk(FakeModels(turn(), error=error)).responses.create(model="gpt-5", input="hi", stream=stream)
        assert raised.value.status_code == 503
        assert raised.value.response.headers["retry-after"] == "7"


async def test_reasoning_sealed_by_another_server_is_refused() -> None:
    item: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA-of-openai"}
    with pytest.raises(openai.BadRequestError) as raised:
        await sdk(FakeModels(turn("x"))).responses.create(model="gpt-5", input=[*INPUT, item])
    assert raised.value.param == "input[2].encrypted_content"
    assert raised.value.code == "invalid_encrypted_content"


async def test_the_best_of_n_responses_is_returned_with_all_scores() -> None:
    models = FakeModels(turn("wrong"), turn("right"), turn("wrong"))
    grader = {"type": "string_check", "input": "{{sample.output_text}}", "reference": "{{item.x}}", "operation": "eq"}
    extra = {"n": 3, "grader": {"name": "g", **grader}, "item": {"x": "right"}}
    response = await sdk(models).responses.create(model="gpt-5", input="hi", extra_body=extra)
    assert response.output_text == "right"
    assert response.metadata == {"scores": "[0.0, 1.0, 0.0]", "best": "1"}


def plain(response: Any) -> Any:
    """Returns a response without what differs each time: ids, times and the sealing of reasoning."""
    dumped = response.model_dump()
    for name in ("id", "created_at", "completed_at"):
        dumped.pop(name)
    for item in dumped["output"]:
        item.pop("id")
        if item.get("encrypted_content"):
            item["encrypted_content"] = BOX.sealer("reasoning", TOKEN).open(item["encrypted_content"])
    return dumped
