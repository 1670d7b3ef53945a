"""Streaming responses of server-sent events. If a stream fails, its last event contains the error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from agent_rft.serve.http.error_responses import make_unexpected_api_error
from agent_rft.wire.api_errors import ApiError, error_body
from agent_rft.wire.sse_format import format_resumable_event, format_sse_event

NO_BUFFER = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class _EventStream(StreamingResponse):
    """Streaming response that saves its failure in the request's state, from which the middleware logs it."""

    failure: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            scope["state"]["failure"] = self.failure


def event_stream(
    events: AsyncIterator[Mapping[str, Any]],
    *,
    named: bool = False,
    resumable: bool = False,
    end: str = "",
    failed: Callable[[ApiError], Mapping[str, Any]] = error_body,
) -> StreamingResponse:
    """Return a streaming response of `events`.

    Args:
        events: Event data, which is sent as JSON.
        named: Use each event's `type` as its SSE event name.
        resumable: Use each event's `id` as its SSE id, send empty events as comments, and escape lone surrogates.
        end: Data of a final event; if it is empty, no final event is sent.
        failed: Function that returns the data of the error event.
    """

    async def encode_events() -> AsyncIterator[str]:
        try:
            async for event in events:
                yield format_resumable_event(event) if resumable else format_sse_event(event, named)
        except ApiError as error:
            response.failure = error
            yield format_sse_event(failed(error), named)
        except Exception as error:  # noqa: BLE001 - the response has started: its status can no longer report it
            response.failure = error
            yield format_sse_event(failed(make_unexpected_api_error(error)), named)
        if end:
            yield f"data: {end}\n\n"

    response = _EventStream(encode_events(), media_type="text/event-stream", headers=NO_BUFFER)
    return response
