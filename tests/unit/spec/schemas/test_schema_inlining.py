"""Schemas are written without references, within bounds."""

from __future__ import annotations

from typing import Any

import pytest

from agent_rft.spec.schemas.schema_inlining import MAX_DEPTH, MAX_DESCRIPTION_CHARS, MAX_NODES, inline_references
from agent_rft.spec.schemas.schema_limits import SchemaProblem


def refused(schema: Any, root: Any) -> SchemaProblem:
    found, mistake = inline_references(schema, root)
    assert found is None and mistake is not None
    return mistake


def test_references_are_replaced_by_what_they_refer_to_also_where_that_refers_on() -> None:
    root = {
        "type": "object",
        "properties": {"from": {"$ref": "#/$defs/Place"}, "to": {"type": "array", "items": {"$ref": "#/$defs/Place"}}},
        "$defs": {"Place": {"properties": {"zip": {"$ref": "#/$defs/Zip"}}}, "Zip": {"type": "integer"}},
    }
    place = {"properties": {"zip": {"type": "integer"}}}
    assert inline_references(root, root) == (
        {"type": "object", "properties": {"from": place, "to": {"type": "array", "items": place}}},
        None,
    )


def test_what_stands_beside_a_reference_is_kept_and_goes_first() -> None:
    root = {"$defs": {"Size": {"type": "integer", "description": "of a shoe", "minimum": 1}}}
    schema = {"$ref": "#/$defs/Size", "description": "in cm", "default": 3}
    assert inline_references(schema, root)[0] == {"type": "integer", "description": "in cm", "minimum": 1, "default": 3}


def test_a_property_may_have_the_name_of_a_keyword_that_is_left_out() -> None:
    schema = {"title": "Book", "properties": {"title": {"type": "string", "title": "Title", "x-order": 1}}}
    assert inline_references(schema, schema)[0] == {"properties": {"title": {"type": "string"}}}


def test_keywords_of_openapi_3_0_become_those_of_json_schema() -> None:
    schema = {
        "type": "object",
        "required": ["id", "size"],
        "properties": {
            "id": {"type": "string", "readOnly": True},
            "size": {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "nullable": True},
            "unit": {"type": "string", "enum": ["cm", "in"], "nullable": True},
            "box": {"allOf": [{"type": "object"}], "nullable": True},
        },
    }
    found, _ = inline_references(schema, schema)
    assert found == {
        "type": "object",
        "required": ["size"],
        "properties": {
            "size": {"type": ["integer", "null"], "exclusiveMinimum": 0},
            "unit": {"type": ["string", "null"], "enum": ["cm", "in", None]},
            "box": {"anyOf": [{"allOf": [{"type": "object"}]}, {"type": "null"}]},
        },
    }


def test_a_description_is_cut() -> None:
    found, _ = inline_references({"description": "d" * 5_000}, {})
    assert found == {"description": "d" * MAX_DESCRIPTION_CHARS}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("#/$defs/Tree", "#/$defs/Tree contains itself, so the schema is infinite"),
        ("#/$defs/Bush", "#/$defs/Bush does not exist in the document"),
        ("trees.json#/Tree", "'trees.json#/Tree' is in another document, which is not fetched"),
        (3, "'3' is in another document, which is not fetched"),
    ],
)
def test_a_reference_that_cannot_be_followed_is_refused_with_its_place(reference: Any, message: str) -> None:
    root = {"properties": {"tree": {"$ref": reference}}, "$defs": {"Tree": {"items": {"$ref": "#/$defs/Tree"}}}}
    mistake = refused(root, root)
    assert mistake.message == message
    assert mistake.path[-1] == "$ref"


def test_references_that_double_at_each_level_end_at_a_bound() -> None:
    doubled = {"anyOf": [{"$ref": "#/$defs/0"}] * 2}
    definitions = {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(30)}
    mistake = refused(doubled, {"$defs": definitions | {"30": {}}})
    assert f"more than {MAX_NODES:,} parts" in mistake.message


def test_a_deep_schema_ends_at_a_bound() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"items": schema}
    mistake = refused(schema, schema)
    assert mistake.path == ("items",) * (MAX_DEPTH + 1)


@pytest.mark.parametrize("schema", [None, True, [], "object"])
def test_what_is_no_object_is_refused(schema: Any) -> None:
    assert refused(schema, schema) == SchemaProblem("invalid_schema", (), "must be a JSON schema", "write an object")
