"""The frame of all models: what a response may have, and lists by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from agent_rft.wire.errors import ErrorBody

Responses = dict[int | str, dict[str, Any]]
FAILURES: Responses = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
EVENT = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}
"""The schema of a server-sent event."""
STREAMED: Responses = {200: {"content": {"text/event-stream": {"schema": EVENT}}}}
"""Content for routes that answer with a model or, if the request asks for it, with server-sent events."""
UnixTime = Annotated[int, BeforeValidator(int)]
"""A time in whole seconds, cut from a record's time with fractions."""


def _without_defaults(schema: dict[str, Any]) -> None:
    """Remove the defaults of fields, which mean nothing to clients."""
    for field in schema.get("properties", {}).values():
        field.pop("default", None)


class ResponseBody(BaseModel):
    """A response, or a part of a response. Clients get every field, even if it has its default."""

    model_config = ConfigDict(
        extra="forbid",
        hide_input_in_errors=True,  # an error is logged, and a response may hold what logs must not
        from_attributes=True,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=True,
        json_schema_extra=_without_defaults,
    )


class ListEntry(ResponseBody):
    """An entry of a list by page."""

    id: str


T = TypeVar("T", bound=ListEntry)


class Page(ResponseBody, Generic[T]):
    """A part of a list; request the next one with `after=<last_id>` while `has_more` is true."""

    object: Literal["list"] = "list"
    data: list[T]
    """The entries."""
    has_more: bool
    """Whether there are entries after `last_id`."""
    first_id: str | None = None
    """Id of the first entry of `data`; null if it is empty."""
    last_id: str | None = None
    """Id of the last entry of `data`, for `after` of the next request; null if it is empty. A search for a text
    may have looked beyond it, also if it has found nothing so far."""

    @classmethod
    def from_entries(cls, entries: Sequence[Any], has_more: bool, last_id: str | None = None) -> Self:
        """Return a page with these entries, or with the entries of these records.

        The next page begins after `last_id`; None: after the last entry.
        """
        page = cls(data=list(entries), has_more=has_more, last_id=last_id)
        if page.data:
            page.first_id, page.last_id = page.data[0].id, last_id or page.data[-1].id
        return page
