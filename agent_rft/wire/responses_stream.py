"""Conversion of chat completion chunks to events of /responses, in the order that OpenAI's SDK expects.

The last event contains all items of the earlier events. The guarantees in the docstring of `responses_chat` also apply
to streams.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent_rft.wire.api_errors import ApiError
from agent_rft.wire.responses_chat import (
    ReasoningSealer,
    finish_response,
    make_call_item,
    make_message_item,
    make_reasoning_item,
    make_text_part,
    new_id,
    new_response,
)
from agent_rft.wire.responses_schema import ResponsesRequest

StreamEvent = dict[str, Any]
NO_USAGE = {
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "total_tokens": 0,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


@dataclass(slots=True)
class _OpenItem:
    """Output item that is being streamed."""

    kind: str
    id: str
    text: str = ""
    call_id: str = ""
    name: str = ""
    index: int = 0


class ResponseStream:
    """Converter of one chat completion stream to the event stream of one response."""

    def __init__(self, request: ResponsesRequest, sealer: ReasoningSealer) -> None:
        self._request = request
        self._sealer = sealer
        self._response = new_response(request, new_id("resp"), int(time.time()))
        self._items: list[dict[str, Any]] = []
        self._open: _OpenItem | None = None
        self._unsent_white_space = ""
        """White space that is not sent yet. If text follows, the white space is sent before the text. If a call
        follows, the white space is dropped."""
        self._sequence_number = -1
        self._finish_reason = "stop"
        self._usage: Mapping[str, Any] = NO_USAGE

    async def events(self, chunks: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[StreamEvent]:
        """Convert the chunks of a chat completion to events, and yield them.

        Raises:
            ApiError: The model failed during the stream.
        """
        for kind in ("response.created", "response.in_progress"):
            yield self._make_event(kind, response=self._response)
        async for chunk in chunks:
            self._usage = chunk.get("usage") or self._usage
            for choice in chunk.get("choices") or ():
                self._finish_reason = choice.get("finish_reason") or self._finish_reason
                for event in self._handle_delta(choice["delta"]):
                    yield event
        for event in self._finish_events():
            yield event

    def error_event(self, error: ApiError) -> StreamEvent:
        """Return the event that ends a failed stream."""
        return self._make_event("error", message=error.message, code=error.code, param=error.param)

    def _make_event(self, kind: str, **values: Any) -> StreamEvent:
        self._sequence_number += 1
        return {"type": kind, "sequence_number": self._sequence_number, **values}

    # -- chunks --------------------------------------------------------------------------------------------------------

    def _handle_delta(self, delta: Mapping[str, Any]) -> Iterator[StreamEvent]:
        if delta.get("reasoning") and self._request.reasoning is not None:
            yield from self._begin_item("reasoning")
            assert self._open is not None
            self._open.text += delta["reasoning"]
        if delta.get("content"):
            yield from self._handle_text(delta["content"])
        for call in delta.get("tool_calls") or ():
            yield from self._handle_call(call)

    def _handle_text(self, text: str) -> Iterator[StreamEvent]:
        if any(item["type"] == "function_call" for item in self._items) or self._is_open("call"):
            return  # clients would treat text after calls as the final answer and never run the calls
        if not self._is_open("message"):
            self._unsent_white_space += text
            if not self._unsent_white_space.strip():
                return
            text, self._unsent_white_space = self._unsent_white_space, ""
            yield from self._begin_item("message")
        assert self._open is not None
        self._open.text += text
        yield self._make_text_event("response.output_text.delta", delta=text, logprobs=[])

    def _handle_call(self, call: Mapping[str, Any]) -> Iterator[StreamEvent]:
        function = call.get("function") or {}
        if not self._is_open("call") or (self._open is not None and self._open.index != call["index"]):
            yield from self._begin_item(
                "call", call["index"], call.get("id") or new_id("call"), function.get("name") or ""
            )
        arguments = function.get("arguments")
        if arguments:
            assert self._open is not None
            self._open.text += arguments
            yield self._make_item_event("response.function_call_arguments.delta", delta=arguments)

    # -- items ---------------------------------------------------------------------------------------------------------

    def _is_open(self, kind: str) -> bool:
        return self._open is not None and self._open.kind == kind

    def _begin_item(self, kind: str, index: int = 0, call_id: str = "", name: str = "") -> Iterator[StreamEvent]:
        """Begin an item of this kind. Do nothing if a reasoning or message item of this kind is already open."""
        if self._is_open(kind) and kind != "call":
            return
        yield from self._close_item()
        prefix = {"reasoning": "rs", "message": "msg", "call": "fc"}[kind]
        self._open = _OpenItem(kind, new_id(prefix), call_id=call_id, name=name, index=index)
        yield self._make_event(
            "response.output_item.added", output_index=len(self._items), item=self._build_item("in_progress")
        )
        if kind == "message":
            yield self._make_part_event("response.content_part.added", make_text_part(""))

    def _close_item(self, status: str = "completed") -> Iterator[StreamEvent]:
        opened = self._open
        if opened is None:
            return
        if opened.kind == "message":
            yield self._make_text_event("response.output_text.done", text=opened.text, logprobs=[])
            yield self._make_part_event("response.content_part.done", make_text_part(opened.text))
        if opened.kind == "call":
            name = {"name": opened.name, "arguments": opened.text}
            yield self._make_item_event("response.function_call_arguments.done", **name)
        item = self._build_item(status)
        yield self._make_event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._open = None

    def _build_item(self, status: str) -> dict[str, Any]:
        opened = self._open
        assert opened is not None
        match opened.kind:
            case "reasoning" if status == "in_progress":
                return {"id": opened.id, "type": "reasoning", "summary": []}
            case "reasoning":
                return make_reasoning_item(self._request, opened.text, self._sealer, opened.id)
            case "message":
                item = make_message_item(opened.text, opened.id, status)
                return {**item, "content": []} if status == "in_progress" else item
        return make_call_item(opened.call_id, opened.name, opened.text, opened.id, status)

    def _finish_events(self) -> Iterator[StreamEvent]:
        status = "incomplete" if self._finish_reason == "length" else "completed"
        yield from self._close_item(status)
        if all(item["type"] == "reasoning" for item in self._items):
            yield from self._begin_item("message")
            assert self._open is not None
            self._open.text = self._unsent_white_space
            yield from self._close_item(status)
        response = finish_response(self._response, self._items, self._finish_reason, self._usage)
        yield self._make_event(f"response.{response['status']}", response=response)

    def _make_item_event(self, kind: str, **values: Any) -> StreamEvent:
        assert self._open is not None
        return self._make_event(kind, item_id=self._open.id, output_index=len(self._items), **values)

    def _make_text_event(self, kind: str, **values: Any) -> StreamEvent:
        return self._make_item_event(kind, content_index=0, **values)

    def _make_part_event(self, kind: str, part: dict[str, Any]) -> StreamEvent:
        return self._make_item_event(kind, content_index=0, part=part)
