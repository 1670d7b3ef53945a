"""Fields of events, as written in JSON."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from agent_rft.cli.reference.docstrings import field_docstrings
from agent_rft.events import Event

_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def event_fields(cls: type[Event]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, JSON type, meaning) of each field of an event kind, except `step`, which all events have."""
    texts, hints = field_docstrings(cls), get_type_hints(cls)
    yield from ((name, json_type(hints[name]), text) for name, text in texts.items() if name != "step")


def describe_level(cls: type[Event]) -> str:
    """Return a human-readable level of an event kind."""
    return cls.LEVEL if cls.level is Event.level else f"{cls.LEVEL}, or error if it failed"


def json_type(hint: Any) -> str:
    """Return the human-readable JSON type for a Python type: `dict[str, float]` -> `object of numbers`."""
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
