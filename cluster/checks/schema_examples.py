"""Example values for the dry run: arguments that fit a tool's schema, and a sample for the graders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_rft.actors.graders.grader_sample import make_sample
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.schemas.schema_limits import resolve_reference
from agent_rft.types import Task, ToolCall, ToolSchema, Turn

MAX_DEPTH = 8
"""Maximum nesting of an example, because a schema may refer to itself."""
MAX_VALUES = 10_000
"""Maximum number of values in an example. The limit is needed because minimum lengths of nested lists multiply."""
MAX_CHARS = 100_000
"""Maximum number of filler characters in an example. Filler makes strings as long as the schema's `minLength`."""


def make_example_sample(reinforcement: Reinforcement, task: Task) -> dict[str, Any]:
    """Return an example of the grader's input: the sample of a rollout that called each tool once and then answered."""
    schema = reinforcement.response_format
    answer = "" if schema is None else json.dumps(make_example(schema))
    turns = [Turn(0, 0, "", calls=tuple(map(make_example_call, task.tools)))] if task.tools else []
    return make_sample(answer, [*turns, Turn(0, 0, answer)], "answer", wants_json=schema is not None)


def make_example_call(tool: ToolSchema) -> ToolCall:
    """Return a call of a tool with arguments that fit its schema."""
    function = tool["function"]
    arguments = make_example(function.get("parameters") or {"type": "object"})
    return ToolCall(f"call_dry_run_{function['name']}", function["name"], json.dumps(arguments))


def make_example(schema: Any) -> Any:
    """Return a small value that fits a JSON schema.

    The value is the schema's default, constant or first choice; otherwise it has only the required parts.
    Patterns and formats are ignored, so a tool may reject the value. If the schema requires more than MAX_VALUES values
    or MAX_CHARS characters, the example is incomplete.
    """
    return _ExampleMaker(schema).value(schema, 0)


class _ExampleMaker:
    """Generator of an example for the schema `root`, with limits on values and characters."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._values_left = MAX_VALUES
        self._chars_left = MAX_CHARS

    def value(self, schema: Any, depth: int) -> Any:
        self._values_left -= 1
        # true and false are schemas
        if not isinstance(schema, dict) or depth > MAX_DEPTH or self._values_left < 0:
            return None
        for key in ("default", "const"):
            if key in schema:
                return schema[key]
        for key in ("enum", "examples"):
            if (choices := schema.get(key)) and isinstance(choices, list):
                return choices[0]
        if isinstance(reference := schema.get("$ref"), str):
            found = resolve_reference(self._root, reference)
            return None if found is None else self.value(found[1], depth + 1)
        if parts := _get_list(schema, "allOf"):
            values = [self.value(part, depth + 1) for part in parts]
            objects = [value for value in values if isinstance(value, dict)]
            return {key: value for part in objects for key, value in part.items()} if objects else values[0]
        for key in ("anyOf", "oneOf"):
            if parts := _get_list(schema, key):
                return self.value(parts[0], depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        kind = kind[0] if isinstance(kind, list) and kind else kind
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind in ("integer", "number"):
            return _example_number(schema)
        return {"boolean": False, "null": None}[kind] if kind in ("boolean", "null") else self._text(schema)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        made = {}
        for name in _get_list(schema, "required"):
            if self._values_left < 0:
                break
            if isinstance(name, str):
                made[name] = self.value(properties.get(name, {}), depth + 1)
        return made

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        made = []
        for _ in range(min(_get_count(schema, "minItems"), MAX_VALUES)):
            if self._values_left < 0:
                break
            made.append(self.value(schema.get("items", {}), depth + 1))
        return made

    def _text(self, schema: Mapping[str, Any]) -> str:
        num_chars = min(_get_count(schema, "minLength"), self._chars_left)
        self._chars_left -= num_chars
        return "x" * num_chars


def _get_list(schema: Mapping[str, Any], key: str) -> list[Any]:
    return value if isinstance(value := schema.get(key), list) else []


def _get_count(schema: Mapping[str, Any], key: str) -> int:
    value = schema.get(key, 0)
    return int(min(value, MAX_CHARS)) if isinstance(value, int | float) and value > 0 else 0


def _get_number(schema: Mapping[str, Any], key: str, otherwise: float) -> float:
    value = schema.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else otherwise


def _example_number(schema: Mapping[str, Any]) -> Any:
    step = _get_number(schema, "multipleOf", 1)
    low = max(_get_number(schema, "minimum", 0), _get_number(schema, "exclusiveMinimum", -step) + step)
    return min(low, _get_number(schema, "maximum", low))
