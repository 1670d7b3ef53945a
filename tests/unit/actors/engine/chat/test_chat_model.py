"""Requests that a chat model refuses before they reach its engine, and what it changes in answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_rft.actors.engine.chat.chat_model import ChatModel, Refusal, _clean_completion
from agent_rft.chat.dialect import Dialect
from agent_rft.chat.model_card import FILE, ModelCard
from agent_rft.chat.serve_settings import ServeSettings
from tests.support.tiny_model import WITHOUT_TOOLS, write_tiny_model

USER = {"role": "user", "content": "Where is order A 17?"}
TOOL = {"type": "function", "function": {"name": "find_order"}}
CALL = {"id": "call", "type": "function", "function": {"name": "find_order", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "call", "content": "sent"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), template=WITHOUT_TOOLS)


@pytest.mark.parametrize(
    ("changes", "param", "send"),
    [
        ({"tools": [TOOL]}, "tools", "Remove the tools"),
        ({"tools": [TOOL], "tool_choice": "none"}, "tools", "Remove the tools"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, RESULT]},
            "messages",
            "Remove the tool calls",
        ),
        ({"messages": [USER, RESULT, USER]}, "messages", "Remove the tool calls"),
    ],
)
@pytest.mark.parametrize("known", ["found", "card", "settings"])
async def test_a_model_without_tools_refuses_tools_and_calls(
    folder: Path, tmp_path: Path, changes: dict[str, Any], param: str, send: str, known: str
) -> None:
    settings = ServeSettings(Dialect("unknown", None)) if known == "settings" else ServeSettings()
    if known == "card":
        folder = write_tiny_model(tmp_path / "model")
        (folder / FILE).write_text(ModelCard(family="unknown", tool_parser=None).model_dump_json())
    model = ChatModel(folder, settings, 256)
    body = {"messages": [USER], **changes}
    refused = await model.chat(body, None)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.param, refused.code) == (400, param, "tools_unsupported")
    assert "does not support tools, because no parser can read" in refused.message and send in refused.message
    assert [chunk async for chunk in model.stream(body, None)] == [refused]


def test_half_of_a_surrogate_pair_in_arguments_is_served_as_its_escape() -> None:
    function = {"name": "find_order", "arguments": '{"id": "é\ud83d"}'}  # some of vLLM's parsers decode escapes
    message = {"content": None, "tool_calls": [{"id": "chatcmpl-tool-1", "function": function}]}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None, "stop_reason": None}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    answer = {"id": "a", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    (cleaned,) = _clean_completion(answer, [])["choices"]
    assert cleaned["message"]["tool_calls"][0]["function"]["arguments"] == r'{"id": "é\ud83d"}'
