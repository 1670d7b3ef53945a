"""Arguments that a family writes one by one between tags, texts as they are and all else as JSON, for decoding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent_rft.spec.schemas.inline import inlined

MOST: Final = 200
"""Arguments of a tool whose values follow their schemas: the time to compile grows with the square of their number."""


@dataclass(frozen=True, slots=True)
class Tags:
    """How a family writes an argument: `before` its name, `between` that and its value, and `after` it.

    `excluded` are the texts that no value has, since their parser would end the value or its call there.
    """

    before: str
    between: str
    after: str
    excluded: tuple[str, ...]


TAGS: Final[Mapping[str, Tags]] = {
    "atem": Tags(
        '<atem:parameter name="',
        '">',
        "</atem:parameter>",
        ("</atem:parameter>", "</atem:invoke>", "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    ),
}
_NAME: Final = {"type": "regex", "pattern": "[A-Za-z_][A-Za-z0-9_]{0,63}"}
_LINE: Final = {"type": "const_string", "value": "\n"}


def parameters_format(schema: Mapping[str, Any], tags: Tags) -> dict[str, Any]:
    """The format of a call's arguments in the order of their schema; those that are not required may be left out.

    A value whose schema has no end may be anything.
    """
    found = inlined(schema, schema)[0] or schema
    properties = found.get("properties")
    if not isinstance(properties, dict) or not 0 < len(properties) <= MOST:
        if not properties and found.get("additionalProperties", True) is False:
            return {"type": "const_string", "value": ""}
        elements = [_NAME, {"type": "const_string", "value": tags.between}, _text(tags)]
        return {"type": "star", "content": _argument(tags.before, {"type": "sequence", "elements": elements}, tags)}
    arguments = []
    for name, part in properties.items():
        value = _value(inlined(part, schema)[0] or {}, tags)
        argument = _argument(f"{tags.before}{name}{tags.between}", value, tags)
        needed = name in (found.get("required") or ())
        arguments.append(argument if needed else {"type": "optional", "content": argument})
    return {"type": "sequence", "elements": arguments}


def _argument(begin: str, content: dict[str, Any], tags: Tags) -> dict[str, Any]:
    tag = {"type": "tag", "begin": begin, "content": content, "end": tags.after}
    return {"type": "sequence", "elements": [tag, _LINE]}


def _text(tags: Tags) -> dict[str, Any]:
    # The text that ends the value is excluded by the tag around it.
    return {"type": "any_text", "excludes": [text for text in tags.excluded if text != tags.after]}


def _value(schema: Any, tags: Tags) -> dict[str, Any]:
    """The format of a value: its choices, a text as it is, or JSON."""
    schema = _plain(schema)
    if _may_be_text(schema):
        return _text(tags)
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, list) and choices:
        return _either([{"type": "const_string", "value": _written(choice)} for choice in choices])
    several = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(several, list) and several:
        return _either([_value(part, tags) for part in several])
    return {"type": "json_schema", "json_schema": schema, "excludes": list(tags.excluded)}


def _plain(schema: Any) -> dict[str, Any]:
    """The schema with what a single `allOf` says; {} for one that allows anything."""
    plain = schema if isinstance(schema, dict) else {}
    match plain.get("allOf"):
        case [dict(only)]:
            return {key: value for key, value in plain.items() if key != "allOf"} | only
    return plain


def _may_be_text(schema: Any) -> bool:
    """Whether any text is a value, as far as its type is known."""
    schema = _plain(schema)
    if "const" in schema or schema.get("enum"):
        return False
    for key in ("anyOf", "oneOf"):
        if isinstance(several := schema.get(key), list):
            return any(map(_may_be_text, several))
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    return "string" in ([kinds] if isinstance(kinds, str) else kinds)


def _written(choice: Any) -> str:
    """A text as it is, but in quotes if its parser would read it as something else."""
    if isinstance(choice, str):
        try:
            json.loads(choice)
        except ValueError:
            return choice
    return json.dumps(choice, ensure_ascii=False)


def _either(formats: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "or", "elements": formats}
