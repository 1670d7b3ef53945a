"""Conversion between /responses and chat completions: input items to messages, completions to output items.

Agent loops in clients rely on these guarantees:
- A response ends with a message or with calls.
- A preamble, which is text before calls, directly precedes the calls.
- A response contains a reasoning item only if the request has `reasoning`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any, Protocol, assert_never

from agent_rft.errors import UnsealFailed
from agent_rft.wire.api_errors import ApiError
from agent_rft.wire.responses_schema import (
    INCLUDE_ENCRYPTED_REASONING,
    CallItem,
    CallOutputItem,
    FlatNamedTool,
    MessageItem,
    ReasoningItem,
    ResponsesRequest,
)


class ReasoningSealer(Protocol):
    """Encryption of a model's reasoning, so that a client can send it back but cannot read it."""

    def seal(self, text: str) -> str:
        """Return the text in encrypted form."""

    def open(self, sealed: str) -> str:
        """Return the text that `seal` encrypted.

        Raises:
            UnsealFailed: The text was encrypted with another secret or for another purpose, or has been changed.
        """


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"


# -- requests ----------------------------------------------------------------------------------------------------------


def to_chat_body(request: ResponsesRequest, sealer: ReasoningSealer) -> dict[str, Any]:
    """Convert a request of /responses to a chat request for a ModelServer.

    Raises:
        ApiError: The input has no message, a call or an output is unmatched, or reasoning cannot be decrypted.
    """
    choice, text = request.chat_tool_choice, request.text
    body: dict[str, Any] = {
        "model": request.model,
        "messages": _build_messages(request, sealer),
        "tools": [tool.model_dump(exclude_none=True) for tool in request.chat_tools] or None,
        "tool_choice": choice if choice is None or isinstance(choice, str) else choice.model_dump(),
        "max_completion_tokens": request.max_output_tokens,
        "reasoning_effort": None if request.reasoning is None else request.reasoning.effort,
        "n": request.n,
        "stream": request.stream,
    }
    for name in ("temperature", "top_p", "top_k", "min_p", "seed", "parallel_tool_calls"):
        body[name] = getattr(request, name)
    if text is not None and text.format is not None:
        body["response_format"] = text.format.model_dump(exclude_none=True, by_alias=True)
    return {name: value for name, value in body.items() if value is not None}


def _build_messages(request: ResponsesRequest, sealer: ReasoningSealer) -> list[dict[str, Any]]:
    builder = _MessageBuilder(sealer)
    if request.instructions:
        builder.messages.append({"role": "system", "content": request.instructions})
    for i, item in enumerate(request.items):
        builder.add(i, item)
    return builder.finish()


class _MessageBuilder:
    """Builder of chat messages from items. Consecutive reasoning, preamble and calls become one assistant message."""

    def __init__(self, sealer: ReasoningSealer) -> None:
        self.messages: list[dict[str, Any]] = []
        self._sealer = sealer
        self._turn: dict[str, Any] = {}
        self._open_calls: list[str] = []
        self._results: list[dict[str, Any]] = []

    def add(self, i: int, item: MessageItem | CallItem | CallOutputItem | ReasoningItem) -> None:
        match item:
            case ReasoningItem():
                if self._turn:
                    self._finish_turn()
                if item.encrypted_content:
                    self._turn["reasoning"] = self._decrypt_reasoning(i, item.encrypted_content)
            case MessageItem(role="assistant"):
                if self._turn.keys() & {"content", "tool_calls"}:
                    self._finish_turn()
                self._turn["content"] = item.content
            case MessageItem():
                self._finish_turn()
                self.messages.append({"role": item.role, "content": item.content})
            case CallItem():
                if self._results:
                    self._finish_turn()
                call = {"id": item.call_id, "type": "function", "function": item.function().model_dump()}
                self._turn.setdefault("tool_calls", []).append(call)
                self._open_calls.append(item.call_id)
            case CallOutputItem():
                self._add_result(i, item)
            case _:
                assert_never(item)

    def finish(self) -> list[dict[str, Any]]:
        self._finish_turn()
        if not self.messages:
            raise ApiError(400, "input contains no message", param="input", code="invalid_value")
        return self.messages

    def _add_result(self, i: int, item: CallOutputItem) -> None:
        if item.call_id not in self._open_calls:
            message = f"No tool call found for function call output with call_id {item.call_id}."
            raise ApiError(400, message, param=f"input[{i}].call_id", code="invalid_value")
        self._open_calls.remove(item.call_id)
        self._results.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})

    def _finish_turn(self) -> None:
        if self._open_calls:
            message = f"No tool output found for function call {self._open_calls[0]}."
            raise ApiError(400, message, param="input", code="invalid_value")
        if "content" in self._turn or "tool_calls" in self._turn:
            self.messages.append({"role": "assistant", "content": None, **self._turn})
        self.messages += self._results
        self._turn, self._results = {}, []

    def _decrypt_reasoning(self, i: int, sealed: str) -> str:
        try:
            return self._sealer.open(sealed)
        except UnsealFailed:
            message = (
                "The encrypted content of this reasoning item could not be verified: this server did not create it, "
                "or created it for another API key."
            )
            param = f"input[{i}].encrypted_content"
            raise ApiError(400, message, param=param, code="invalid_encrypted_content") from None


# -- answers -----------------------------------------------------------------------------------------------------------


def make_reasoning_item(
    request: ResponsesRequest, reasoning: str, sealer: ReasoningSealer, item_id: str
) -> dict[str, Any]:
    item: dict[str, Any] = {"id": item_id, "type": "reasoning", "summary": []}
    if INCLUDE_ENCRYPTED_REASONING in request.include:
        item["encrypted_content"] = sealer.seal(reasoning)
    return item


def make_message_item(text: str, item_id: str, status: str) -> dict[str, Any]:
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": [make_text_part(text)]}


def make_text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def make_call_item(call_id: str, name: str, arguments: str, item_id: str, status: str = "completed") -> dict[str, Any]:
    return {
        "id": item_id,
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def build_output_items(
    request: ResponsesRequest, choice: Mapping[str, Any], sealer: ReasoningSealer
) -> list[dict[str, Any]]:
    """Return the output items of a response for one choice of a chat completion."""
    message = choice["message"]
    calls, text = message.get("tool_calls") or (), message.get("content") or ""
    items = []
    if message.get("reasoning") and request.reasoning is not None:
        items.append(make_reasoning_item(request, message["reasoning"], sealer, new_id("rs")))
    if text.strip() or not calls:
        status = "incomplete" if choice["finish_reason"] == "length" and not calls else "completed"
        items.append(make_message_item(text, new_id("msg"), status))
    for call in calls:
        items.append(make_call_item(call["id"], call["function"]["name"], call["function"]["arguments"], new_id("fc")))
    return items


def build_response(
    request: ResponsesRequest, completion: Mapping[str, Any], sealer: ReasoningSealer, response_id: str
) -> dict[str, Any]:
    """Return the response object of /responses for a finished chat completion."""
    choice = completion["choices"][0]
    response = new_response(request, response_id, int(time.time()))
    if "metadata" in completion:
        chosen = {name: json.dumps(value) for name, value in completion["metadata"].items()}
        response["metadata"] = {**response["metadata"], **chosen}
    items = build_output_items(request, choice, sealer)
    return finish_response(response, items, choice["finish_reason"], completion["usage"])


def new_response(request: ResponsesRequest, response_id: str, created_at: int) -> dict[str, Any]:
    """Return a response object of /responses with the status in_progress and without output."""
    choice = request.tool_choice or "auto"
    text_format: dict[str, Any] = {"type": "text"}
    if request.text is not None and request.text.format is not None:
        requested = request.text.format
        schema = requested.json_schema.model_dump(by_alias=True) if requested.json_schema is not None else {}
        text_format = {"type": requested.type, **schema}
    reasoning = request.reasoning
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": dict(request.metadata or {}),
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": request.temperature if request.temperature is not None else 1.0,
        "text": {"format": text_format},
        "tool_choice": choice.model_dump() if isinstance(choice, FlatNamedTool) else choice,
        "tools": [_fill_in_tool(tool.model_dump()) for tool in request.functions],
        "top_p": request.top_p if request.top_p is not None else 1.0,
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }


def finish_response(
    response: Mapping[str, Any], items: list[dict[str, Any]], finish_reason: str, usage: Mapping[str, Any]
) -> dict[str, Any]:
    cut = finish_reason == "length"
    return {
        **response,
        "status": "incomplete" if cut else "completed",
        "completed_at": None if cut else int(time.time()),
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": items,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
                "cache_write_tokens": 0,
            },
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
            "total_tokens": usage["total_tokens"],
        },
    }


def _fill_in_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Add default values for keys that client libraries require."""
    return {**tool, "parameters": tool.get("parameters") or {}, "strict": bool(tool.get("strict"))}
