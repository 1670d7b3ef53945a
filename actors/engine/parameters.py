"""Arguments that a family writes one by one between tags, texts as they are and all else as JSON, for decoding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainer.spec.inline import inlined


@dataclass(frozen=True, slots=True)
class Tags:
    """How a family writes an argument: `before` its name, `between` that and its value, and `after` it.

    `excluded` are the texts that no text has.
    """

    before: str
    between: str
    after: str
    excluded: tuple[str, ...]


TAGS: Final[Mapping[str, Tags]] = {
    "atem": Tags(
        '<atem:parameter name="', '">', "</atem:parameter>", ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>")
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
    text = {"type": "any_text", "excludes": list(tags.excluded)}
    if not isinstance(properties, dict) or not properties:
        if found.get("additionalProperties", True) is False:
            return {"type": "const_string", "value": ""}
        named = {"type": "sequence", "elements": [_NAME, {"type": "const_string", "value": tags.between}, text]}
        return {"type": "star", "content": _argument(tags.before, named, tags.after)}
    elements = []
    for name, part in properties.items():
        value = inlined(part, schema)[0] or {}
        argument = _argument(f"{tags.before}{name}{tags.between}", _literal(value) or _free(value, text), tags.after)
        needed = name in (found.get("required") or ())
        elements.append(argument if needed else {"type": "optional", "content": argument})
    return {"type": "sequence", "elements": elements}


def _argument(begin: str, content: dict[str, Any], end: str) -> dict[str, Any]:
    tag = {"type": "tag", "begin": begin, "content": content, "end": end}
    return {"type": "sequence", "elements": [tag, _LINE]}


def _literal(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The format of a value of which all choices are given."""
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(choices, list) or not choices:
        return None
    texts = [choice if isinstance(choice, str) else json.dumps(choice, ensure_ascii=False) for choice in choices]
    return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in texts]}


def _free(schema: Mapping[str, Any], text: dict[str, Any]) -> dict[str, Any]:
    return text if _may_be_text(schema) else {"type": "json_schema", "json_schema": dict(schema)}


def _may_be_text(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return True
    for key in ("anyOf", "oneOf"):
        if isinstance(several := schema.get(key), list):
            return any(map(_may_be_text, several))
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    return "string" in ([kinds] if isinstance(kinds, str) else kinds)
