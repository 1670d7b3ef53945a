"""Base classes of the response models, and paginated lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from agent_rft.wire.api_errors import ErrorBody

Responses = dict[int | str, dict[str, Any]]
FAILURES: Responses = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
EVENT = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}
"""Schema of a server-sent event."""
STREAMED: Responses = {200: {"content": {"text/event-stream": {"schema": EVENT}}}}
"""Responses of routes that return an object or, on request, server-sent events."""
UnixTime = Annotated[int, BeforeValidator(int)]
"""Unix time in seconds, truncated to an integer."""


def _remove_defaults(schema: dict[str, Any]) -> None:
    """Remove the defaults of fields from a schema, since responses always contain all fields."""
    for field in schema.get("properties", {}).values():
        field.pop("default", None)


class ResponseBody(BaseModel):
    """Base class of responses and their parts. Responses contain all fields, including fields with default values."""

    model_config = ConfigDict(
        extra="forbid",
        hide_input_in_errors=True,  # validation errors are logged, and a response may contain secrets
        from_attributes=True,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=True,
        json_schema_extra=_remove_defaults,
    )


class ListEntry(ResponseBody):
    """Base class of the entries of paginated lists."""

    id: str


T = TypeVar("T", bound=ListEntry)


class Page(ResponseBody, Generic[T]):
    """A page of a list. While `has_more` is true, request the next page with `after=<last_id>`."""

    object: Literal["list"] = "list"
    data: list[T]
    """The entries."""
    has_more: bool
    """Whether the list has entries after `last_id`."""
    first_id: str | None = None
    """Id of the first entry of `data`; null if `data` is empty."""
    last_id: str | None = None
    """Value of `after` for the next page: the id of the last entry in `data`. If a text search ended early, it is the
    id of the last entry that was searched. Null if there are no entries."""

    @classmethod
    def from_entries(cls, entries: Sequence[Any], has_more: bool, last_id: str | None = None) -> Self:
        """Return a page of `entries`.

        `last_id` is the cursor for the next page. The default is the id of the last entry.
        """
        page = cls(data=list(entries), has_more=has_more, last_id=last_id)
        if page.data:
            page.first_id, page.last_id = page.data[0].id, last_id or page.data[-1].id
        return page
