"""Messages of requests: text parts mean their text, and other parts are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from agent_rft.chat.message_schema import ToolMessage
from agent_rft.wire.chat_schema import ChatRequest
from agent_rft.wire.responses_schema import ResponsesRequest


@pytest.mark.parametrize("role", ["developer", "system", "user", "assistant"])
@pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
def test_text_parts_mean_their_text_in_both_apis(role: str, kind: str) -> None:
    parts = [{"type": kind, "text": "a"}, {"type": kind, "text": "b", "annotations": []}]
    message = {"role": role, "content": parts}
    chat = ChatRequest.model_validate({"model": "m", "messages": [message]})
    assert chat.to_chat_body()["messages"] == [{"role": role, "content": "a\nb"}]
    responses = ResponsesRequest.model_validate({"model": "m", "input": [message]})
    assert [item.content for item in responses.items if item.type == "message"] == ["a\nb"]


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
def test_the_result_of_a_call_may_be_text_parts(kind: str) -> None:
    parts = [{"type": kind, "text": "a"}]
    assert ToolMessage.model_validate({"role": "tool", "tool_call_id": "a", "content": parts}).content == "a"
    call = {"type": "function_call", "call_id": "a", "name": "cat", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "a", "output": parts}
    responses = ResponsesRequest.model_validate({"model": "m", "input": [call, output]})
    assert [item.output for item in responses.items if item.type == "function_call_output"] == ["a"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
        {"type": "input_image", "image_url": "http://x/y.png"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "input_file", "file_id": "file-1"},
    ],
    ids=lambda part: str(part["type"]),
)
def test_other_parts_are_refused_by_name(part: dict[str, Any]) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "see"}, part]}
    for model, key in ((ChatRequest, "messages"), (ResponsesRequest, "input")):
        with pytest.raises(ValidationError, match=f"the part type '{part['type']}' is not supported; use parts"):
            model.model_validate({"model": "m", key: [message]})


@pytest.mark.parametrize("content", ["image_url", '[{"type": "image_url"}]', "null", "NaN"])
def test_text_that_only_contains_such_words_is_unchanged(content: str) -> None:
    chat = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": content}]})
    assert chat.messages[0].content == content
