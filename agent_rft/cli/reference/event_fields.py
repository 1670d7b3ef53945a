"""Fields of events with their JSON types, for the manual and `agent-rft explain`."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from agent_rft.cli.reference.docstrings import field_docstrings
from agent_rft.events import Event

_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def event_fields(cls: type[Event]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, JSON type, meaning) of each field of a kind of event, except `step`, which every event has."""
    texts, hints = field_docstrings(cls), get_type_hints(cls)
    yield from ((name, json_type(hints[name]), text) for name, text in texts.items() if name != "step")


def describe_level(cls: type[Event]) -> str:
    """Return the level of a kind of event as human-readable text."""
    return cls.LEVEL if cls.level is Event.level else f"{cls.LEVEL}, or error if the job failed"


def json_type(hint: Any) -> str:
    """Return a human-readable JSON type for a Python type, such as `object of numbers` for `dict[str, float]`."""
    arguments = get_args(hint)
    if get_origin(hint) is Literal:
        return " or ".join(map(str, arguments))
    if isinstance(hint, UnionType):
        return " or ".join(map(json_type, arguments))
    if get_origin(hint) is tuple:
        return f"list of {json_type(arguments[0])}s"
    if get_origin(hint) is dict:
        return f"object of {json_type(arguments[1])}s"
    return _WORDS.get(hint, "object")
