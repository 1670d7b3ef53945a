"""Conversion of chat completion chunks to events of /responses, in the order that OpenAI's SDK expects.

The last event contains the same items as the events before it. The guarantees of `responses_chat` apply.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent_rft.wire.api_errors import ApiError
from agent_rft.wire.responses_chat import (
    ReasoningSealer,
    call_item,
    finish_response,
    message_item,
    new_id,
    new_response,
    reasoning_item,
    text_part,
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
class _Open:
    """Output item that is being streamed."""

    kind: str
    id: str
    text: str = ""
    call_id: str = ""
    name: str = ""
    index: int = 0


class ResponseStream:
    """Event stream of one response."""

    def __init__(self, request: ResponsesRequest, sealer: ReasoningSealer) -> None:
        self._request = request
        self._sealer = sealer
        self._response = new_response(request, new_id("resp"), int(time.time()))
        self._items: list[dict[str, Any]] = []
        self._open: _Open | None = None
        self._blank = ""
        """White space that is not sent yet: it is dropped if a call follows, and starts a message if text follows."""
        self._number = -1
        self._finish = "stop"
        self._usage: Mapping[str, Any] = NO_USAGE

    async def events(self, chunks: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[StreamEvent]:
        """Yield the events of the response.

        Raises:
            ApiError: The model failed during the stream.
        """
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response)
        async for chunk in chunks:
            self._usage = chunk.get("usage") or self._usage
            for choice in chunk.get("choices") or ():
                self._finish = choice.get("finish_reason") or self._finish
                for event in self._delta(choice["delta"]):
                    yield event
        for event in self._finish_events():
            yield event

    def error_event(self, error: ApiError) -> StreamEvent:
        """Return the event that ends a failed stream."""
        return self._event("error", message=error.message, code=error.code, param=error.param)

    def _event(self, kind: str, **values: Any) -> StreamEvent:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **values}

    # -- chunks --------------------------------------------------------------------------------------------------------

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[StreamEvent]:
        if delta.get("reasoning") and self._request.reasoning is not None:
            yield from self._begin("reasoning")
            assert self._open is not None
            self._open.text += delta["reasoning"]
        if delta.get("content"):
            yield from self._content(delta["content"])
        for call in delta.get("tool_calls") or ():
            yield from self._call(call)

    def _content(self, text: str) -> Iterator[StreamEvent]:
        if any(item["type"] == "function_call" for item in self._items) or self._is_open("call"):
            return  # clients would treat text after calls as the final answer and never run the calls
        if not self._is_open("message"):
            self._blank += text
            if not self._blank.strip():
                return
            text, self._blank = self._blank, ""
            yield from self._begin("message")
        assert self._open is not None
        self._open.text += text
        yield self._on_text("response.output_text.delta", delta=text, logprobs=[])

    def _call(self, call: Mapping[str, Any]) -> Iterator[StreamEvent]:
        function = call.get("function") or {}
        if not self._is_open("call") or (self._open is not None and self._open.index != call["index"]):
            yield from self._begin("call", call["index"], call.get("id") or new_id("call"), function.get("name") or "")
        arguments = function.get("arguments")
        if arguments:
            assert self._open is not None
            self._open.text += arguments
            yield self._on_item("response.function_call_arguments.delta", delta=arguments)

    # -- items ---------------------------------------------------------------------------------------------------------

    def _is_open(self, kind: str) -> bool:
        return self._open is not None and self._open.kind == kind

    def _begin(self, kind: str, index: int = 0, call_id: str = "", name: str = "") -> Iterator[StreamEvent]:
        """Open an item of this kind, unless one is already open; each call is a separate item."""
        if self._is_open(kind) and kind != "call":
            return
        yield from self._close()
        prefix = {"reasoning": "rs", "message": "msg", "call": "fc"}[kind]
        self._open = _Open(kind, new_id(prefix), call_id=call_id, name=name, index=index)
        yield self._event("response.output_item.added", output_index=len(self._items), item=self._item("in_progress"))
        if kind == "message":
            yield self._on_part("response.content_part.added", text_part(""))

    def _close(self, status: str = "completed") -> Iterator[StreamEvent]:
        opened = self._open
        if opened is None:
            return
        if opened.kind == "message":
            yield self._on_text("response.output_text.done", text=opened.text, logprobs=[])
            yield self._on_part("response.content_part.done", text_part(opened.text))
        if opened.kind == "call":
            name = {"name": opened.name, "arguments": opened.text}
            yield self._on_item("response.function_call_arguments.done", **name)
        item = self._item(status)
        yield self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._open = None

    def _item(self, status: str) -> dict[str, Any]:
        opened = self._open
        assert opened is not None
        match opened.kind:
            case "reasoning" if status == "in_progress":
                return {"id": opened.id, "type": "reasoning", "summary": []}
            case "reasoning":
                return reasoning_item(self._request, opened.text, self._sealer, opened.id)
            case "message":
                item = message_item(opened.text, opened.id, status)
                return {**item, "content": []} if status == "in_progress" else item
        return call_item(opened.call_id, opened.name, opened.text, opened.id, status)

    def _finish_events(self) -> Iterator[StreamEvent]:
        status = "incomplete" if self._finish == "length" else "completed"
        yield from self._close(status)
        if all(item["type"] == "reasoning" for item in self._items):
            yield from self._begin("message")
            assert self._open is not None
            self._open.text = self._blank
            yield from self._close(status)
        response = finish_response(self._response, self._items, self._finish, self._usage)
        yield self._event(f"response.{response['status']}", response=response)

    def _on_item(self, kind: str, **values: Any) -> StreamEvent:
        assert self._open is not None
        return self._event(kind, item_id=self._open.id, output_index=len(self._items), **values)

    def _on_text(self, kind: str, **values: Any) -> StreamEvent:
        return self._on_item(kind, content_index=0, **values)

    def _on_part(self, kind: str, part: dict[str, Any]) -> StreamEvent:
        return self._on_item(kind, content_index=0, part=part)
