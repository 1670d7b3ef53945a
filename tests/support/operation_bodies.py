"""Bodies for the operations of an OpenAPI document: the places that a value may have, and large valid bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.hostile_requests import ROOM, Place, many

HOLE = "\ue000"
MAX_DEPTH, MAX_PLACES = 7, 150
VALID = {"model": "gpt-5", "training_file": "file-1", "server_url": "https://tools.example/x", "messages": []}
"""Values of fields that a route looks up, by the fields' names."""

Schema = Mapping[str, Any]


class BodyPlaces:
    """Places in the bodies of an OpenAPI document's operations."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document

    def operations(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Yield (method, path, operation) of each operation."""
        for path, methods in self.document["paths"].items():
            for method, operation in methods.items():
                yield method.upper(), path, operation

    def find_places(self, path: str, operation: Mapping[str, Any]) -> dict[str, Place]:
        """Return up to MAX_PLACES places in the JSON body of an operation, from the outside in."""
        content = operation.get("requestBody", {}).get("content", {})
        if "application/json" not in content:
            return {}
        found: dict[str, Place] = {}
        for depth in range(MAX_DEPTH):
            for name, value in self._walk(content["application/json"]["schema"], "body", depth):
                before, _, after = json.dumps(value, ensure_ascii=False).partition(f'"{HOLE}"')
                found.setdefault(name, Place(path, before, after))
                if len(found) == MAX_PLACES:
                    return found
        return found

    def _walk(self, schema: Schema, name: str, depth: int) -> Iterator[tuple[str, Any]]:
        """Yield the name and a body with HOLE for each place that is `depth` levels below the schema."""
        if depth == 0:
            yield name, HOLE
            return
        for one in self._alternatives(schema):
            kind = one.get("title", "") if len(list(self._alternatives(schema))) > 1 else ""
            if one.get("type") == "array":
                for inner, value in self._walk(one.get("items", {}), f"{name}[]", depth - 1):
                    yield inner, [value]
            properties = one.get("properties", {})
            base = {key: self._minimal(properties[key], key) for key in one.get("required", ())}
            base |= {key: value["const"] for key, value in properties.items() if "const" in value}
            for key, below in properties.items():
                for inner, value in self._walk(below, f"{name}{kind and f'<{kind}>'}.{key}", depth - 1):
                    yield inner, base | {key: value}
            if isinstance(one.get("additionalProperties"), dict):
                for inner, value in self._walk(one["additionalProperties"], f"{name}.*", depth - 1):
                    yield inner, base | {"a": value}

    def _alternatives(self, schema: Schema) -> Iterator[Schema]:
        if "$ref" in schema:
            found: Any = self.document
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            yield from self._alternatives(found)
        elif nested := [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]:
            for one in nested:
                yield from self._alternatives(one)
        else:
            yield schema

    def _minimal(self, schema: Schema, name: str = "") -> Any:
        if name in VALID:
            return VALID[name]
        one = next(iter(self._alternatives(schema)))
        if "const" in one or "enum" in one:
            return one.get("const", one.get("enum", [None])[0])
        match one.get("type"):
            case "object":
                return {key: self._minimal(one["properties"][key], key) for key in one.get("required", ())}
            case "array":
                return [self._minimal(one.get("items", {}))] * one.get("minItems", 0)
            case "integer" | "number":
                return one.get("minimum", 1)
            case "boolean":
                return True
        return "a"


def _text(unit: str, size: int = ROOM - 2_000) -> str:
    return json.dumps(unit * (size // len(unit)), ensure_ascii=False)


TEXTS = {
    "a regex": _text("(a+)+"),
    "a regex with counts": _text("(a{1,1000}){1,1000}"),
    "a template": _text("{{ item.a }}"),
    "an open template": _text("{{ ("),
    "a template that loops": json.dumps("{% for a in range(99999) %}" * 30_000),
    "a path": json.dumps("{{ item" + ".a" * 400_000 + " }}"),
    "an expression": _text("a+"),
    "an expression of signs": _text("-"),
    "an expression of powers": json.dumps("9**" * 200_000 + "9"),
    "a Python source": json.dumps("def grade(sample, item): return 0\n" + "import a\n" * 99_000),
    "a Python source with brackets": json.dumps("x = " + "[" * 400_000),
    "a short Python source with much in it": json.dumps("def grade(s, i): return " + "1+" * 20_000 + "1"),
    "a URL": json.dumps("http://" + "\u00e4." * 290_000 + "example/", ensure_ascii=False),
    "a URL with brackets": json.dumps("http://[" + ":" * 900_000 + "]/"),
    "a data URL": json.dumps("data:image/png;base64," + "A" * 900_000),
    "a number": "1e400",
    "a long number": "-" + "9" * 4_000,
}
_LEVELS = 60
SCHEMAS = {
    "a schema of patterns": json.dumps({"properties": {f"a{i}": {"pattern": "(a|a?)+" * 20} for i in range(4_000)}}),
    "a schema of references": json.dumps(
        {"$defs": {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(99)}, "$ref": "#/$defs/a0"}
    ),
    "a deep schema": '{"not":' * 90 + "{}" + "}" * 90,
    "a schema of unions": '{"anyOf":[' + many('{"type":"string"}') + "]}",
    "a schema of values": json.dumps({"enum": [str(i) for i in range(20_000)]}),
    "a schema of counts": json.dumps({"type": "string", "minLength": 10**9, "pattern": "^(a{1000}){1000}$"}),
    "graders": '{"type":"multi","graders":{"a":' * _LEVELS + "{}" + '},"calculate_output":"a"}' * _LEVELS,
}
FIELDS = TEXTS | SCHEMAS
"""Values for fields that are more than data: URLs, templates, patterns, schemas, expressions and sources."""

CHECK = {"type": "string_check", "name": "a", "input": "{{ item.a }}", "reference": "a", "operation": "eq"}
PYTHON = {"type": "python", "name": "p", "source": "def grade(sample, item):\n    return 0\n" + "#" * 200_000}
MULTI = {
    "type": "multi",
    "name": "m",
    "graders": {f"a{i}": CHECK | {"name": f"a{i}", "input": "{{ item.a }} " * 50} for i in range(60)} | {"p": PYTHON},
    "calculate_output": " + ".join(f"a{i}" for i in range(60)),
}
CHECKS = MULTI | {"graders": {f"a{i}": CHECK | {"name": f"a{i}"} for i in range(60)}}
HEADERS = {"A": "b" * 500}
TOOL_SCHEMA = {
    "type": "object",
    "properties": {f"a{i}": {"type": "string", "description": "x" * 50, "enum": ["a", "b"]} for i in range(100)},
}
FUNCTION = {"type": "function", "function": {"name": "a", "description": "x" * 1_000, "parameters": TOOL_SCHEMA}}
TEXT = {"role": "user", "content": "word " * 50}
JOB: dict[str, Any] = {
    "model": "gpt-5",
    "training_file": "file-1",
    "metadata": {f"key {i}": "x" * 500 for i in range(16)},
    "method": {
        "type": "reinforcement",
        "reinforcement": {
            "grader": MULTI,
            "tools": [
                {
                    "name": f"tool_{i}",
                    "server_url": f"https://tools.example/{'x' * 1_000}/{i}",
                    "headers": {"A": "b" * 500},
                }
                for i in range(100)
            ],
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "a",
                    "schema": TOOL_SCHEMA | {"$defs": {str(i): TOOL_SCHEMA for i in range(20)}},
                },
            },
        },
    },
    "model_options": {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}" + "{# x #}" * 9_000},
}
LARGE: dict[str, list[Any]] = {
    "/v1/fine_tuning/jobs": [JOB],
    "/v1/fine_tuning/jobs/check": [JOB],
    "/v1/fine_tuning/readiness": [JOB],
    "/v1/fine_tuning/alpha/graders/validate": [{"grader": MULTI}],
    "/v1/fine_tuning/alpha/graders/run": [
        {"grader": CHECK, "model_sample": "x" * 400_000, "item": {"a": "y" * 500_000}},
        {"grader": CHECK, "model_sample": "x", "item": {f"a{i}": "y" for i in range(20_000)}},
        {
            "grader": MULTI | {"graders": {f"a{i}": CHECK for i in range(60)}},
            "model_sample": "x",
            "item": {"a": "b" * 9_000},
        },
        {
            "grader": {"type": "text_similarity", "name": "a", "input": "{{ item.a }}", "reference": "{{ item.b }}"}
            | {"evaluation_metric": "rouge_l"},
            "model_sample": "x",
            "item": {"a": "a b " * 100_000, "b": "b c " * 100_000},
        },
    ],
    "/v1/fine_tuning/alpha/tool/run": [
        {"name": "a", "server_url": "https://127.0.0.1:1/x", "arguments": {f"a{i}": "y" * 30 for i in range(20_000)}}
    ],
    "/v1/chat/completions": [
        {"model": "gpt-5", "messages": [TEXT] * 1_500, "tools": [FUNCTION] * 25},
        {"model": "gpt-5", "messages": [TEXT | {"content": [{"type": "text", "text": "word " * 20}] * 4_000}]},
        {"model": "gpt-5", "messages": [TEXT | {"content": "word " * 190_000}]},
    ],
    "/v1/responses": [
        {"model": "gpt-5", "input": [TEXT] * 3_000},
        {"model": "gpt-5", "input": [TEXT | {"content": [{"type": "input_text", "text": "word " * 20}] * 4_000}]},
        {"model": "gpt-5", "input": "word " * 190_000},
    ],
    "/v1/embeddings": [{"model": "gpt-5", "input": ["word " * 10] * 10_000}],
    "/v1/api_keys": [{"name": "a" * 64, "scopes": ["read"]}],
}
"""Large bodies of operations that follow the document, by path."""
