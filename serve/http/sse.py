"""Server-sent events: a failure during a stream ends the stream with an error event, which clients raise."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from serve.http.errors import ApiError, body_of, of_unexpected

NO_BUFFER = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class _EventStream(StreamingResponse):
    """A stream that leaves its failure in the request's state, from which the frame writes it to the server's log."""

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
    failed: Callable[[ApiError], Mapping[str, Any]] = body_of,
) -> StreamingResponse:
    """Returns a streaming response of `events`.

    With `named`, each event carries its `type` as its SSE event name; with `resumable`, its `id` is that of SSE, an
    empty one is a comment, and texts of models may hold half characters. `end` is the data of the last line, if any;
    `failed` makes the event for an error.
    """

    async def lines() -> AsyncIterator[str]:
        try:
            async for event in events:
                yield _resumable(event) if resumable else _line(event, named)
        except ApiError as error:
            response.failure = error
            yield _line(failed(error), named)
        except Exception as error:  # noqa: BLE001 - the response has started: its status can no longer report it
            response.failure = error
            yield _line(failed(of_unexpected(error)), named)
        if end:
            yield f"data: {end}\n\n"

    response = _EventStream(lines(), media_type="text/event-stream", headers=NO_BUFFER)
    return response


def _line(event: Mapping[str, Any], named: bool) -> str:
    name = f"event: {event['type']}\n" if named and "type" in event else ""
    return f"{name}data: {json.dumps(event, separators=(',', ':'), ensure_ascii=False)}\n\n"


def _resumable(event: Mapping[str, Any]) -> str:
    if not event:
        return ": nothing new\n\n"
    data = json.dumps({name: value for name, value in event.items() if name != "id"}, separators=(",", ":"))
    return f"event: {event['type']}\nid: {event['id']}\ndata: {data}\n\n"
