"""Simplification of tool schemas for prompts: references are inlined and irrelevant keywords are removed.

The size of the result is limited, because most chat templates copy a tool's schema into the prompt. Keywords of
OpenAPI 3.0 are converted to JSON Schema.
"""

from __future__ import annotations

from typing import Any

from agent_rft.spec.schemas.schema_limits import (
    SCHEMA_KEYWORDS,
    SCHEMA_LIST_KEYWORDS,
    SCHEMA_MAP_KEYWORDS,
    Path,
    SchemaProblem,
    SchemaRejected,
    make_schema_error,
    resolve_reference,
)

MAX_NODES = 2_000
"""Maximum subschemas of one tool after inlining. Nested references could multiply them without limit."""
MAX_DEPTH = 40
MAX_DESCRIPTION_CHARS = 1_000
OMITTED_KEYWORDS = frozenset(
    {
        *(
            "title",
            "example",
            "examples",
            "xml",
            "externalDocs",
            "discriminator",
            "deprecated",
            "readOnly",
            "writeOnly",
        ),
        *("$defs", "definitions", "$id", "$schema", "$comment", "nullable"),
    }
)


def inline_references(schema: Any, root: Any, path: Path = ()) -> tuple[dict[str, Any] | None, SchemaProblem | None]:
    """Return (schema with each reference replaced by its target, None), or (None, problem) if that fails.

    The schema is at `path` in the document `root`. References are resolved in this document.
    """
    try:
        found = _Inliner(root).inline(schema, path, (), 0)
    except SchemaRejected as error:
        return None, error.problem
    if not isinstance(found, dict):
        return None, SchemaProblem("invalid_schema", path, "must be a JSON schema", "write an object")
    return found, None


class _Inliner:
    """Recursive replacement of the references of one schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._num_left = MAX_NODES

    def inline(self, schema: Any, path: Path, above: tuple[str, ...], depth: int) -> Any:
        """Return the schema at `path` without references.

        `above` contains the references that led to this schema, and `depth` is its depth in the result.
        """
        self._num_left -= 1
        if self._num_left < 0 or depth > MAX_DEPTH:
            what = f"has more than {MAX_NODES:,} parts or {MAX_DEPTH} levels after following references"
            raise make_schema_error(path, what, "describe only the arguments that the model needs, or omit this schema")
        if not isinstance(schema, dict):
            return schema
        if (reference := schema.get("$ref")) is not None:
            return self._follow(schema, reference, path, above, depth)
        found: dict[str, Any] = {}
        for key, value in schema.items():
            if key in SCHEMA_MAP_KEYWORDS and key not in OMITTED_KEYWORDS and isinstance(value, dict):
                found[key] = {
                    name: self.inline(part, (*path, key, name), above, depth + 1)
                    for name, part in value.items()
                    if not (isinstance(part, dict) and part.get("readOnly") is True)
                }
            elif key in SCHEMA_KEYWORDS and isinstance(value, dict):
                found[key] = self.inline(value, (*path, key), above, depth + 1)
            elif key in SCHEMA_LIST_KEYWORDS and isinstance(value, list):
                found[key] = [self.inline(part, (*path, key, i), above, depth + 1) for i, part in enumerate(value)]
            elif key == "description" and isinstance(value, str):
                found[key] = value.strip()[:MAX_DESCRIPTION_CHARS]
            elif key not in OMITTED_KEYWORDS and not str(key).startswith("x-"):
                found[key] = value
        return _convert_openapi(found, schema)

    def _follow(self, schema: dict[str, Any], reference: Any, path: Path, above: tuple[str, ...], depth: int) -> Any:
        at = (*path, "$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            message = f"{str(reference)[:200]!r} is in another document, which is not fetched"
            raise make_schema_error(at, message, "bundle all documents into one file first")
        if reference in above:
            message = f"{reference[:200]} contains itself, so the schema is infinite"
            fix = "replace this reference with {type: object}, or omit the tools that use the schema: "
            fix += "select all other tools, each with --tool"
            raise make_schema_error(at, message, fix)
        target = resolve_reference(self._root, reference)
        if target is None:
            raise make_schema_error(at, f"{reference[:200]} does not exist in the document", "correct the reference")
        place, found = target
        result = self.inline(found, place, (*above, reference), depth + 1)
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        if siblings and isinstance(result, dict):  # such as a default or a description
            result = {**result, **self.inline(siblings, path, above, depth + 1)}
        return result


def _convert_openapi(found: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Convert OpenAPI 3.0 keywords to JSON Schema 2020-12 keywords."""
    if isinstance(required := found.get("required"), list) and isinstance(names := found.get("properties"), dict):
        found["required"] = [
            name
            for name in required
            if not isinstance(name, str) or name in names or name not in schema["properties"]  # removed above
        ]
    for key, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(found.get(key), bool) and found.pop(key) and bound in found:
            found[key] = found.pop(bound)
    if schema.get("nullable") is not True:
        return found
    if isinstance(kind := found.get("type"), str):
        enum = {"enum": [*found["enum"], None]} if isinstance(found.get("enum"), list) else {}
        return {**found, "type": [kind, "null"], **enum}
    return {"anyOf": [found, {"type": "null"}]}
