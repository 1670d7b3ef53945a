"""The fields of events, as they are in JSON."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from agent_rft.cli.reference.texts import field_texts
from agent_rft.events import Event

_WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}


def event_fields(cls: type[Event]) -> Iterator[tuple[str, str, str]]:
    """(name, type in JSON, meaning) of the fields of a kind of event, without `step`, which all have."""
    texts, hints = field_texts(cls), get_type_hints(cls)
    yield from ((name, json_type(hints[name]), text) for name, text in texts.items() if name != "step")


def level_of(cls: type[Event]) -> str:
    """The level of the events of a kind, in words."""
    return cls.LEVEL if cls.level is Event.level else f"{cls.LEVEL}, or error if it failed"


def json_type(hint: Any) -> str:
    """A Python type as the JSON that it is written as: `dict[str, float]` -> `object of numbers`."""
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
