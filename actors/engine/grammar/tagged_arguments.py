"""Formats of model families that write each argument of a call separately, between tags.

Strings are written without quotes, and other values as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent_rft.spec.schemas.schema_inlining import inline_references

MAX_TYPED_ARGUMENTS: Final = 200
"""Maximum number of arguments for which a schema is enforced; compile time is quadratic in the number."""


@dataclass(frozen=True, slots=True)
class ArgumentTags:
    """Strings around an argument: before its name, between its name and its value, and after its value.

    No value may contain a string in `excluded_strings`, because the parser would take this string for the end of the
    value or the call.
    """

    before_name: str
    before_value: str
    after_value: str
    excluded_strings: tuple[str, ...]


ARGUMENT_TAGS: Final[Mapping[str, ArgumentTags]] = {
    "atem": ArgumentTags(
        '<atem:parameter name="',
        '">',
        "</atem:parameter>",
        ("</atem:parameter>", "</atem:invoke>", "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    ),
}
_NAME: Final = {"type": "regex", "pattern": "[A-Za-z_][A-Za-z0-9_]{0,63}"}
_LINE_BREAK: Final = {"type": "const_string", "value": "\n"}


def build_tagged_format(schema: Mapping[str, Any], tags: ArgumentTags) -> dict[str, Any]:
    """Return the xgrammar format of a call's arguments, in schema order. Optional arguments may be omitted.

    If the schema of an argument is recursive, the value of the argument is not constrained.
    """
    found = inline_references(schema, schema)[0] or schema
    properties = found.get("properties")
    if not isinstance(properties, dict) or not 0 < len(properties) <= MAX_TYPED_ARGUMENTS:
        if not properties and found.get("additionalProperties", True) is False:
            return {"type": "const_string", "value": ""}
        elements = [_NAME, {"type": "const_string", "value": tags.before_value}, _any_text(tags)]
        return {
            "type": "star",
            "content": _argument_format(tags.before_name, {"type": "sequence", "elements": elements}, tags),
        }
    arguments = []
    for name, part in properties.items():
        value = _value_format(inline_references(part, schema)[0] or {}, tags)
        argument = _argument_format(f"{tags.before_name}{name}{tags.before_value}", value, tags)
        needed = name in (found.get("required") or ())
        arguments.append(argument if needed else {"type": "optional", "content": argument})
    return {"type": "sequence", "elements": arguments}


def _argument_format(begin: str, content: dict[str, Any], tags: ArgumentTags) -> dict[str, Any]:
    tag = {"type": "tag", "begin": begin, "content": content, "end": tags.after_value}
    return {"type": "sequence", "elements": [tag, _LINE_BREAK]}


def _any_text(tags: ArgumentTags) -> dict[str, Any]:
    # The surrounding tag already excludes the text that ends the value.
    return {"type": "any_text", "excludes": [text for text in tags.excluded_strings if text != tags.after_value]}


def _value_format(schema: Any, tags: ArgumentTags) -> dict[str, Any]:
    """Return the format of a value: one of the schema's choices, an unquoted string, or JSON."""
    schema = _merge_all_of(schema)
    if _may_be_string(schema):
        return _any_text(tags)
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, list) and choices:
        return _one_of([{"type": "const_string", "value": _format_choice(choice)} for choice in choices])
    several = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(several, list) and several:
        return _one_of([_value_format(part, tags) for part in several])
    return {"type": "json_schema", "json_schema": schema, "excludes": list(tags.excluded_strings)}


def _merge_all_of(schema: Any) -> dict[str, Any]:
    """Return a schema in which `allOf` is replaced by the keys of its only entry.

    Returns the schema unchanged if `allOf` does not have exactly one entry. Returns {} if the schema is not a dict.
    """
    plain = schema if isinstance(schema, dict) else {}
    match plain.get("allOf"):
        case [dict(only)]:
            return {key: value for key, value in plain.items() if key != "allOf"} | only
    return plain


def _may_be_string(schema: Any) -> bool:
    """Return whether the schema permits arbitrary strings."""
    schema = _merge_all_of(schema)
    if "const" in schema or schema.get("enum"):
        return False
    for key in ("anyOf", "oneOf"):
        if isinstance(several := schema.get(key), list):
            return any(map(_may_be_string, several))
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    return "string" in ([kinds] if isinstance(kinds, str) else kinds)


def _format_choice(choice: Any) -> str:
    """Return a choice as the model writes it: a string without quotes, or any other value as JSON.

    A string whose content is valid JSON, such as `5` or `true`, is written with quotes.
    """
    if isinstance(choice, str):
        try:
            json.loads(choice)
        except ValueError:
            return choice
    return json.dumps(choice, ensure_ascii=False)


def _one_of(formats: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "or", "elements": formats}
