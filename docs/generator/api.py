"""reference/api.md and reference/schemas/openapi.json: the routes of the server's API, from the app itself."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_rft.cli.reference.docstrings import to_sentence
from agent_rft.serve.host.server_state import ServerState, StateLocations
from agent_rft.serve.host.services import Services
from agent_rft.serve.http.api_app import create_app
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from docs.generator.markdown import code, narrow_table, plain

Schema = Mapping[str, Any]

_INTRO = """# The API

`agent-rft serve` provides OpenAI's API for files, fine-tuning jobs, models, chat completions and responses, so OpenAI's
clients work with it. Every request below `/v1` needs a key: `Authorization: Bearer sk-rft-...`. The response to a
failed request is `{"error": {"message", "type", "param", "code"}}`; [Problem codes](problems.md) explains each code.
[Job settings](job.md) describes the fields of `method`. Everything that this page does not describe is as in OpenAI's
API.

The OpenAPI document is [openapi.json](schemas/openapi.json). A server has the same document at `/openapi.json`, and a
page to try requests at `/docs`.
"""
_REFS = "#/components/schemas/"


def pages() -> dict[str, str]:
    """The page of all routes, and the OpenAPI document."""
    document = _document()
    routes: dict[str, str] = {}
    for path, operations in document["paths"].items():
        for method, route in operations.items():
            tag = str(route["tags"][0]).capitalize()
            routes[tag] = routes.get(tag, "") + f"\n### `{method.upper()} {path}`\n\n" + _route(route, document)
    text = _INTRO + "".join(f"\n## {tag}\n{of_tag}" for tag, of_tag in routes.items())
    answered = sorted(
        {name for path in document["paths"].values() for route in path.values() for name in _answers(route)}
    )
    objects = "".join(f"\n### `{name}`\n\n{_object(_model(name, document), document)}" for name in answered)
    return {
        "api.md": f"{text}\n## Answers\n{objects}",
        "schemas/openapi.json": json.dumps(document, indent=1, ensure_ascii=False),
    }


def _document() -> dict[str, Any]:
    """The OpenAPI document; its app has a new, empty state and starts nothing."""
    nothing: Any = None
    with tempfile.TemporaryDirectory() as folder:
        state = ServerState(StateLocations(Path(folder)), DEFAULT_CONFIG)
        try:
            return create_app(Services(state, DEFAULT_CONFIG, nothing, nothing).routers, nothing).openapi()
        finally:
            state.close()


def _route(route: Schema, document: Schema) -> str:
    text = plain(to_sentence(route.get("description") or route["summary"])) + "\n"
    parameters = [
        (code(p["name"]), p["in"], _bounded(p["schema"]), plain(p.get("description", "")))
        for p in route.get("parameters", ())
    ]
    if parameters:
        text += "\n" + narrow_table(("Parameter", "In", "Type", "Meaning"), parameters)
    for kind, content in route.get("requestBody", {}).get("content", {}).items():
        fields = _object(_resolved(content["schema"], document), document)
        text += f"\nRequest, `{kind}`:\n\n{fields}"
    answers = " or ".join(f"[`{name}`](#{name.lower()})" for name in _answers(route))
    return text + (f"\nAnswer: {answers}.\n" if answers else "")


def _answers(route: Schema) -> Iterator[str]:
    """The names of the objects in successful answers."""
    for content in route["responses"].get("200", {}).get("content", {}).values():
        schema = content.get("schema", {})
        for option in schema.get("anyOf", [schema]):
            if "$ref" in option:
                yield option["$ref"].removeprefix(_REFS)


def _object(schema: Schema, document: Schema) -> str:
    """The fields of an object, with what is known about it as a whole."""
    schema = _resolved(schema, document)
    required = schema.get("required", ())
    rows = [
        (code(name), _bounded(field), "yes" if name in required else "", plain(field.get("description", "")))
        for name, field in schema.get("properties", {}).items()
    ]
    about = plain(schema.get("description", ""))
    fields = narrow_table(("Field", "Type", "Required", "Meaning"), rows) if rows else ""
    return "\n\n".join(filter(None, (about, fields))) or "An object.\n"


def _model(name: str, document: Schema) -> Schema:
    model: Schema = document["components"]["schemas"][name]
    return model


def _resolved(schema: Schema, document: Schema) -> Schema:
    return _model(schema["$ref"].removeprefix(_REFS), document) if "$ref" in schema else schema


def _bounded(schema: Schema) -> str:
    """The type of a value with its default, if that is simple."""
    default = schema.get("default")
    return _type(schema) + (f"; default {code(json.dumps(default))}" if default not in (None, {}, []) else "")


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return code(schema["$ref"].removeprefix(_REFS))
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(option) for option in options))
    if "const" in schema or "enum" in schema:
        return " or ".join(code(json.dumps(value)) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))
