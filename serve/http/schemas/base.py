"""The frame of all schemas: what a response may have, lists by page, and `responses` of routes."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from serve.http.errors import ErrorBody

T = TypeVar("T")
Responses = dict[int | str, dict[str, Any]]
EVENT = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}
"""The schema of a server-sent event."""


def answers(model: Any, *, streams: bool = False) -> Responses:
    """Returns the `responses` of a route that answers with `model`, and if `streams` also with server-sent events."""
    described: dict[str, Any] = {"model": model}
    if streams:
        described["content"] = {"text/event-stream": {"schema": EVENT}}
    return {200: described, "5XX": {"model": ErrorBody}}


class ResponseBody(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Page(ResponseBody, Generic[T]):
    """A part of a list; request the next one with `after=<last_id>` while `has_more` is true."""

    object: Literal["list"]
    data: list[T]
    """The entries."""
    has_more: bool
    """Whether there are entries after `last_id`."""
    first_id: str | None
    """Id of the first entry of `data`; null if it is empty."""
    last_id: str | None
    """Id of the last entry of `data`, for `after` of the next request; null if it is empty. A search for a text
    may have looked beyond it, also if it has found nothing so far."""
