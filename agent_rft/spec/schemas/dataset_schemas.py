"""Conversion of tool schemas in published data sets to JSON schemas.

Only these parts of a schema are changed, and only if their meaning is clear:

- names of types in other languages, such as `dict` and `float`
- null values; Apache Arrow adds them, so that all objects of a table have the same keys
- a boolean `required` inside a property
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from agent_rft.spec.schemas.schema_limits import (
    MAX_DEPTH,
    SCHEMA_KEYWORDS,
    SCHEMA_LIST_KEYWORDS,
    SCHEMA_MAP_KEYWORDS,
    Path,
    make_schema_error,
    shorten,
)

JSON_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
ANY = "any"
"""Name of the type that allows every value. JSON Schema has no such type; the keyword `type` is omitted instead."""
TYPES = {
    **{"str": "string", "text": "string"},
    **{"float": "number", "double": "number", "int": "integer", "long": "integer", "bigint": "integer"},
    **{"bool": "boolean", "list": "array", "tuple": "array", "arraylist": "array"},
    **{"dict": "object", "hashmap": "object", "none": "null"},
}
"""Maps the names of types in data sets, in lower case, to JSON types."""
NULLS_REMOVED = "null values were removed"
REQUIRED_MOVED = "a boolean `required` became an entry of the object's list `required`"
MAX_NAME_CHARS = 60


def convert_dataset_schema(schema: Any) -> tuple[Any, list[str]]:
    """Return (JSON schema, descriptions of the changes).

    Raises:
        SchemaRejected: A type is unknown, `required` is invalid, or the schema is nested too deeply.
    """
    converter = _Converter()
    return converter.convert(schema, ()), list(converter.changes)


class _Converter:
    """Recursive conversion of one schema. The keys of `changes` describe the changes that were made."""

    def __init__(self) -> None:
        self.changes: dict[str, None] = {}

    def convert(self, schema: Any, path: Path) -> Any:
        if len(path) > MAX_DEPTH:
            raise make_schema_error(path[:MAX_DEPTH], "is nested too deeply", "describe fewer levels")
        if not isinstance(schema, dict):
            return schema
        schema = self._move_required(schema, path)
        kinds = self._convert_types(schema.get("type"), (*path, "type"))
        found: dict[str, Any] = {}
        for key, value in schema.items():
            if _is_padding(value) and not (key in ("default", "const") and (not kinds or "null" in kinds)):
                self.changes[NULLS_REMOVED] = None
            elif key == "type":
                if kinds:
                    found[key] = kinds[0] if isinstance(value, str) else kinds
            elif key in SCHEMA_MAP_KEYWORDS and isinstance(value, dict):
                found[key] = self._convert_map(value, (*path, key))
            elif key in SCHEMA_LIST_KEYWORDS and isinstance(value, list):
                found[key] = [self.convert(part, (*path, key, i)) for i, part in enumerate(value)]
            elif key in SCHEMA_KEYWORDS:
                found[key] = self.convert(value, (*path, key))
            else:
                found[key] = value
        return found

    def _convert_map(self, parts: dict[str, Any], path: Path) -> dict[str, Any]:
        if any(map(_is_padding, parts.values())):
            self.changes[NULLS_REMOVED] = None
        return {name: self.convert(part, (*path, name)) for name, part in parts.items() if not _is_padding(part)}

    def _convert_types(self, value: Any, path: Path) -> list[str]:
        """Return the JSON types for the keyword `type`; an empty list allows any value."""
        names = value if isinstance(value, list) else [] if value is None else [value]
        converted = [self._convert_type(name, path) for name in names]
        return [] if ANY in converted else list(dict.fromkeys(converted))

    def _convert_type(self, name: Any, path: Path) -> str:
        if name in JSON_TYPES:
            return str(name)
        lower = name.lower() if isinstance(name, str) else ""
        if lower == ANY:
            self.changes["the type any was omitted"] = None
            return ANY
        kind = lower if lower in JSON_TYPES else TYPES.get(lower)
        if kind is None:
            shown = repr(shorten(name, MAX_NAME_CHARS)) if isinstance(name, str) else "the value"
            raise make_schema_error(path, f"{shown} is not a JSON type", f"write {_list_types(lower)}")
        self.changes[f"the type {name} became {kind}"] = None
        return kind

    def _move_required(self, schema: dict[str, Any], path: Path) -> dict[str, Any]:
        """Replace a boolean `required` in the schema's properties by the list `required` of the schema itself."""
        if isinstance(schema.get("required"), bool):
            raise make_schema_error((*path, "required"), "must be a list", "write the names of the required properties")
        properties, listed = schema.get("properties"), schema.get("required") or []
        flags = {
            name: part["required"]
            for name, part in (properties.items() if isinstance(properties, dict) else ())
            if isinstance(part, dict) and isinstance(part.get("required"), bool)
        }
        if not flags or not isinstance(properties, dict) or not isinstance(listed, list):
            return schema
        self.changes[REQUIRED_MOVED] = None
        plain = dict(properties)
        for name, is_required in flags.items():
            if name in listed and not is_required:
                at = (*path, "properties", name, "required")
                message = f"is false, but `required` of the object lists {name!r}"
                raise make_schema_error(at, message, "correct one of the two")
            plain[name] = {key: value for key, value in properties[name].items() if key != "required"}
        names = [*listed, *(name for name, is_required in flags.items() if is_required and name not in listed)]
        return {**schema, "properties": plain} | ({"required": names} if names else {})


def _is_padding(value: Any, depth: int = 0) -> bool:
    """Return whether a value is null, or an object that has only such values."""
    if not isinstance(value, dict) or not value or depth > MAX_DEPTH:
        return value is None
    return all(_is_padding(part, depth + 1) for part in value.values())


def _list_types(name: str) -> str:
    """Return the fix for the unknown type `name`.

    For example, the fix for "list[str]" is to write `array`. For a name that does not resemble a list or an object, the
    fix lists all types.
    """
    containers: dict[str, Collection[str]] = {
        "array, and put the type of its items into `items`": ("list[", "array[", "tuple[", "set", "sequence", "vector"),
        "object": ("dict[", "map", "struct", "record"),
    }
    for fix, starts in containers.items():
        if name.startswith(tuple(starts)):
            return fix
    return f"one of {', '.join(JSON_TYPES[:-1])}, or omit `type` to allow any value"
