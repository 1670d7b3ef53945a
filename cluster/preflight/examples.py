"""Example values for the dry run: arguments that fit a tool's schema, and a sample for the graders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from actors.graders.sample import sample_of
from trainer.spec.job import Reinforcement
from trainer.types import Task, ToolCall, ToolSchema, Turn

MAX_DEPTH = 8
"""The deepest nesting of an example: a schema may refer to itself."""


def example_sample(reinforcement: Reinforcement, task: Task) -> dict[str, Any]:
    """The sample of a rollout that called each of the row's tools once and then answered."""
    schema = reinforcement.response_format
    answer = "" if schema is None else json.dumps(example_of(schema))
    turns = [Turn(0, 0, "", calls=tuple(map(example_call, task.tools)))] if task.tools else []
    return sample_of(answer, [*turns, Turn(0, 0, answer)], "answer", wants_json=schema is not None)


def example_call(tool: ToolSchema) -> ToolCall:
    """A call of a tool with arguments that fit its schema."""
    function = tool["function"]
    arguments = example_of(function.get("parameters") or {"type": "object"})
    return ToolCall(f"call_dry_run_{function['name']}", function["name"], json.dumps(arguments))


def example_of(schema: Any, root: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """A small value that fits a JSON schema: its default, constant or first choice, else required parts, left empty.

    Patterns and formats are ignored: a tool may well reject the value.
    """
    if not isinstance(schema, dict) or depth > MAX_DEPTH:  # true and false are schemas
        return None
    root = schema if root is None else root
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    if "$ref" in schema:
        return example_of(_referred(schema["$ref"], root), root, depth + 1)
    if "allOf" in schema:
        parts = [example_of(part, root, depth + 1) for part in schema["allOf"]]
        objects = [part for part in parts if isinstance(part, dict)]
        return {key: value for part in objects for key, value in part.items()} if objects else parts[0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return example_of(schema[key][0], root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: example_of(properties.get(name, {}), root, depth + 1) for name in schema.get("required", [])}
    if kind == "array":
        return [example_of(schema.get("items", {}), root, depth + 1)] * schema.get("minItems", 0)
    if kind in ("integer", "number"):
        return _example_number(schema)
    return {"boolean": False, "null": None}.get(kind, "x" * schema.get("minLength", 0))


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    """The schema that `#/$defs/name` refers to; None, which fits anything, if there is none."""
    value: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _example_number(schema: Mapping[str, Any]) -> Any:
    step = schema.get("multipleOf", 1)
    low = max(schema.get("minimum", 0), schema.get("exclusiveMinimum", -step) + step)
    return low if low <= schema.get("maximum", low) else schema["maximum"]
