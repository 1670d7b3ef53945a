"""Schemas of users: honest ones mean what they meant to the jsonschema library, mistakes are named, caps hold."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from agent_rft.spec.schemas.json_schema import SchemaValidator, find_schema_problem
from agent_rft.spec.schemas.schema_limits import (
    MAX_CHOICES,
    MAX_DEPTH,
    MAX_LOWER_BOUND,
    MAX_PATTERN_CHARS,
    MAX_PATTERNS,
    MAX_SUBSCHEMAS,
    MAX_UPPER_BOUND,
)
from tests.support.grammars import fits

DRAFT_4, DRAFT_6, DRAFT_7 = (f"http://json-schema.org/draft-0{n}/schema#" for n in (4, 6, 7))
DRAFT_2019, DRAFT_2020 = (f"https://json-schema.org/draft/{n}/schema" for n in ("2019-09", "2020-12"))


def obj(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
NODE = obj("name", name=TEXT, children={"type": "array", "items": {"$ref": "#/$defs/node"}})
SHAPE = {
    "oneOf": [
        obj("kind", "radius", kind={"const": "circle"}, radius={"type": "number", "exclusiveMinimum": 0}),
        obj("kind", "side", kind={"const": "square"}, side={"type": "number"}),
    ]
}
OPTIONAL = {"anyOf": [TEXT, {"type": "null"}], "default": None}

SCHEMAS: list[tuple[dict[str, Any], list[Any]]] = [
    (obj("path", path=TEXT), [{"path": "a"}, {"path": 1}, {}, {"path": "a", "x": 1}, [], None, "a"]),
    ({**obj("path", path=TEXT), "additionalProperties": False}, [{"path": "a"}, {"path": "a", "x": 1, "y": 2}]),
    ({"type": "object", "additionalProperties": False}, [{}, {"x": 1}]),
    ({"type": "object", "properties": {}, "additionalProperties": False}, [{}, {"x": 1}]),
    (obj(limit={"type": "integer", "minimum": 1, "maximum": 100}), [{"limit": n} for n in (0, 1, 100, 101, 5.0, 5.5)]),
    (obj("limit", limit={"type": "integer", "minimum": 1, "exclusiveMinimum": True}) | {"$schema": DRAFT_4},
     [{"limit": n} for n in (1, 2, 2.0, "2")]),
    (obj(limit={"type": "number", "exclusiveMinimum": 1}) | {"$schema": DRAFT_6}, [{"limit": n} for n in (1, 2, 1.5)]),
    (obj(unit={"type": "string", "enum": ["c", "f"]}), [{"unit": u} for u in ("c", "f", "k", None)]),
    (obj(unit={"enum": ["c", None, 1, True]}), [{"unit": u} for u in ("c", None, 1, 1.0, True, False, 0)]),
    (obj(unit={"const": {"a": [1]}}), [{"unit": u} for u in ({"a": [1]}, {"a": [1.0]}, {"a": []})]),
    (obj(title=OPTIONAL), [{"title": t} for t in ("a", None, 1)]),
    (obj(title={"type": "string", "nullable": True}), [{"title": t} for t in ("a", None)]),
    (obj(title={"type": ["string", "null"], "maxLength": 3}), [{"title": t} for t in ("abc", "äöü", "abcd", None, 1)]),
    (obj(mail={"type": "string", "format": "email"}), [{"mail": m} for m in ("a@b.c", "no mail", 1)]),
    (obj(day={"type": "string", "format": "date"}) | {"$schema": DRAFT_7}, [{"day": d} for d in ("2020-01-01", "x")]),
    (obj(day={"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"}), [{"day": d} for d in ("2020-01-01", "20-1-1")]),
    (obj(sku={"pattern": "^[A-Z]{2}-[0-9]+"}), [{"sku": s} for s in ("AB-1", "AB-1x", "ab-1", 5)]),
    (obj(word={"pattern": r"^(?!admin)\w+$"}), [{"word": w} for w in ("user", "admin", "")]),
    (obj(word={"pattern": r"^(a|b)\1$"}), [{"word": w} for w in ("aa", "ab", "bb")]),
    (obj(word={"pattern": r"^(?=.*\d)(?=.*[a-z]).{8,}$"}), [{"word": w} for w in ("abcdefg1", "abcdefgh", "a1")]),
    (obj(tags={"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2, "uniqueItems": True}),
     [{"tags": t} for t in (["a"], [], ["a", "a"], ["a", "b", "c"], ["a", 1])]),
    (obj(point={"prefixItems": [WHOLE, TEXT], "items": False}),
     [{"point": p} for p in ([1, "a"], [1], ["a"], [1, "a", 2])]),
    (obj(point={"items": [WHOLE, TEXT], "additionalItems": False}) | {"$schema": DRAFT_7},
     [{"point": p} for p in ([1, "a"], [1], ["a"], [1, "a", 2])]),
    ({"$defs": {"node": NODE}, **obj("root", root={"$ref": "#/$defs/node"})},
     [{"root": {"name": "a", "children": [{"name": "b"}]}}, {"root": {"name": "a", "children": [{"name": 1}]}}, {}]),
    ({"definitions": {"x": TEXT}, "$schema": DRAFT_7, **obj(a={"$ref": "#/definitions/x"})}, [{"a": "b"}, {"a": 1}]),
    ({"$id": "https://example.com/tool", "$defs": {"x": {"$anchor": "here", **TEXT}}, **obj(a={"$ref": "#here"})},
     [{"a": "b"}, {"a": 1}]),
    (obj("shape", shape=SHAPE), [
        {"shape": s} for s in ({"kind": "circle", "radius": 1}, {"kind": "circle", "radius": 0}, {"kind": "x"},
                               {"kind": "square", "side": "1"}, 5)]),
    ({"allOf": [obj("a", a=WHOLE), obj("b", b=WHOLE)]}, [{"a": 1, "b": 2}, {"a": 1}, {"a": 1, "b": "x"}]),
    ({"type": "object", "patternProperties": {"^x-": TEXT}, "additionalProperties": WHOLE},
     [{"x-a": "b"}, {"x-a": 1}, {"y": 1}, {"y": "b"}]),
    ({"type": "object", "additionalProperties": {"type": "array", "items": WHOLE}}, [{"a": [1]}, {"a": ["b"]}]),
    ({"type": "object", "propertyNames": {"maxLength": 2}, "minProperties": 1, "maxProperties": 2},
     [{"a": 1}, {}, {"abc": 1}, {"a": 1, "b": 1, "c": 1}]),
    ({"if": obj(a={"const": 1}), "then": {"required": ["b"]}, "else": {"required": ["c"]}},
     [{"a": 1, "b": 1}, {"a": 1}, {"a": 2, "c": 1}, {"a": 2}]),
    ({"dependentRequired": {"a": ["b"]}}, [{"a": 1}, {"a": 1, "b": 1}, {}]),
    ({"dependencies": {"a": ["b"], "c": {"required": ["d"]}}, "$schema": DRAFT_7},
     [{"a": 1}, {"c": 1}, {"a": 1, "b": 1}]),
    ({"not": {"required": ["a"]}}, [{}, {"a": 1}]),
    ({"contains": WHOLE, "minContains": 2, "$schema": DRAFT_2019}, [[1, 2], [1, "a"], []]),
    ({**obj(a=WHOLE), "unevaluatedProperties": False, "$schema": DRAFT_2020}, [{"a": 1}, {"b": 1}]),
    (obj(n={"multipleOf": 0.5}), [{"n": n} for n in (1, 1.5, 1.25)]),
    ({}, [1, {}, None]),
]  # fmt: skip
CASES = [(schema, value) for schema, values in SCHEMAS for value in values]


@pytest.mark.parametrize(("schema", "value"), CASES)
def test_honest_schemas_mean_what_they_mean_to_the_reference_implementation(schema: dict[str, Any], value: Any) -> None:
    reference = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    reference.check_schema(schema)
    assert find_schema_problem(schema) is None
    found = SchemaValidator(schema).find_violation(value)
    assert (found is None) is reference(schema).is_valid(value), found
    assert found is None or (found.startswith("at $") and len(found) < 320)


@pytest.mark.parametrize(
    ("schema", "value", "told"),
    [
        (obj("path", path=TEXT), {"path": 1}, 'at $.path: 1 is not of type "string"'),
        (obj("path", path=TEXT), {}, 'at $: "path" is a required property'),
        (obj(tags={"items": TEXT}), {"tags": ["a", 1]}, 'at $.tags[1]: 1 is not of type "string"'),
        ({"type": "object", "additionalProperties": False}, {"x": 1},
         "at $: Additional properties are not allowed ('x' was unexpected)"),
        (obj(unit={"enum": ["c", "f"]}), {"unit": "k"}, 'at $.unit: "k" is not one of "c" or "f"'),
        (obj(title=OPTIONAL), {"title": 1}, "at $.title: 1 is not valid under any of the given schemas"),
        (obj(o={"anyOf": [obj("a", a=WHOLE), {"type": "null"}]}), {"o": {"a": "x"}},
         'at $.o.a: "x" is not of type "integer"'),
        (obj(shape=SHAPE), {"shape": {"kind": "circle", "radius": "2"}},
         'at $.shape.radius: "2" is not of type "number"'),
        ({"$defs": {"node": NODE}, "$ref": "#/$defs/node"}, {"name": "a", "children": [{"name": 1}]},
         'at $.children[0].name: 1 is not of type "string"'),
        (obj(word={"pattern": r"^(a+)+\1$"}), {"word": "a" * 50_000 + "b"}, "cannot be compared with the pattern"),
        (obj(a=WHOLE), {"a": "x" * 100_000}, '...xxxxxxxxxxxxxx" is not of type "integer"'),
        (obj(a=WHOLE), {"a": list(range(100_000))}, 'at $.a: the list is not of type "integer"'),
        (obj(a=WHOLE), {"a": "\ud800"}, "at $: the value has half of a surrogate pair"),
        ({"not": {"required": ["a"]}}, {"a": 1}, "breaks the rule 'not'"),
    ],
)  # fmt: skip
def test_the_model_is_told_the_argument_and_the_rule_in_few_words(schema: Any, value: Any, told: str) -> None:
    mistake = SchemaValidator(schema).find_violation(value)
    assert mistake is not None and told in mistake
    assert len(mistake) <= 300


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("at_cap", "above", "code", "place"),
    [
        (nested(MAX_DEPTH - 1), nested(MAX_DEPTH), "schema_too_large", "$: is nested more than 64"),
        (
            {"minLength": MAX_LOWER_BOUND},
            {"minLength": MAX_LOWER_BOUND + 1},
            "schema_too_large",
            "$.minLength: is 10,001",
        ),
        (obj(a={"minItems": MAX_LOWER_BOUND}), obj(a={"minItems": 1e9}), "schema_too_large", "$.properties.a.minItems"),
        ({"enum": [*range(MAX_CHOICES)]}, {"enum": [*range(MAX_CHOICES + 1)]}, "schema_too_large", "$.enum"),
        ({"pattern": "a" * MAX_PATTERN_CHARS}, {"pattern": "a" * (MAX_PATTERN_CHARS + 1)},
         "schema_too_large", "$.pattern"),
        (obj(**{f"p{i}": {"pattern": "a"} for i in range(MAX_PATTERNS)}),
         obj(**{f"p{i}": {"pattern": "a"} for i in range(MAX_PATTERNS + 1)}), "schema_too_large", "101 patterns"),
        ({"anyOf": [True, *[{} for _ in range(MAX_SUBSCHEMAS - 1)]]}, {"anyOf": [{} for _ in range(MAX_SUBSCHEMAS)]},
         "schema_too_large", "over 5,000 subschemas"),
        (obj(), obj(a={"description": "x" * (256 << 10)}), "schema_too_large", "bytes as JSON"),
        ({"pattern": "a"}, {"pattern": "("}, "invalid_schema", "$.pattern"),
        ({"pattern": "a"}, {"pattern": 5}, "invalid_schema", "$.pattern: 5 is not"),
        (TEXT, {"type": "objet"}, "invalid_schema", '$.type: "objet"'),
        (obj(a={"$ref": "#"}), {"$ref": "#"}, "invalid_schema", "cycle"),
        (obj(), obj(a={"$ref": "https://example.com/x"}), "invalid_schema", "$.properties.a.$ref: the reference"),
        (obj(), obj(a={"$ref": "#/$defs/none"}), "invalid_schema", "cannot be resolved"),
        (obj(), obj(a={"maximum": float("inf")}), "invalid_schema", "such as infinity"),
        (obj(), obj(a={"const": 10**5000}), "invalid_schema", "thousands of digits"),
        (obj(), {"const": "\ud800"}, "invalid_schema", "surrogate"),
    ],
)  # fmt: skip
def test_a_schema_is_refused_just_above_each_cap(at_cap: Any, above: Any, code: str, place: str) -> None:
    assert find_schema_problem(at_cap, grammar=True) is None
    mistake = find_schema_problem(above)
    assert mistake is not None
    assert mistake.code == code and place in str(mistake) and mistake.fix


@pytest.mark.parametrize("name", ["1", "01", "a"])
def test_a_property_that_is_no_schema_is_named_whatever_its_name(name: str) -> None:
    mistake = find_schema_problem({"properties": {name: 2}})
    assert mistake is not None and mistake.message.startswith("2 is not of types")


@pytest.mark.parametrize(
    "schema",
    [{"pattern": p} for p in (r"^(?=a)b", r"(a)\1", r"\bfoo\b", r"\p{L}", r"(?<!a)b")]
    + [
        {"maxItems": MAX_UPPER_BOUND + 1},
        {"pattern": "[ab]{1,1001}"},
        obj(**{f"p{i}": {"pattern": "a{999}b{1,}"} for i in range(11)}),
    ],
)
def test_what_only_a_grammar_cannot_hold_is_refused_only_there(schema: Any) -> None:
    assert find_schema_problem(schema) is None
    mistake = find_schema_problem(schema, grammar=True)
    assert mistake is not None and mistake.code in ("unsupported_pattern", "schema_too_large")
    assert find_schema_problem({"pattern": r"^\\b[\w.-]+$"}, grammar=True) is None


def test_a_schema_of_an_old_job_that_is_refused_today_still_tells_types_and_required_keys() -> None:
    checker = SchemaValidator(obj("a", a={"type": "string", "minLength": 10**9}))
    assert checker.find_violation({"a": "x"}) is None
    assert checker.find_violation({}) == 'at $: "a" is a required property'
    assert checker.find_violation({"a": 1}) == 'at $.a: 1 is not of type "string"'


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"enum": []}, "enum"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "exclusiveMinimum"),
        ({"type": "number", "minimum": 3, "exclusiveMaximum": 3}, "minimum"),
        ({"type": "integer", "minimum": 0.5, "maximum": 3}, "minimum"),
        ({"type": "number", "minimum": 10**400, "maximum": 1.5}, "minimum"),
        ({"type": "string", "minLength": 5, "maxLength": 3}, "minLength"),
        ({"type": "array", "minItems": 5, "maxItems": 3}, "minItems"),
        ({"type": "object", "minProperties": 5, "maxProperties": 3}, "minProperties"),
    ],
)
def test_what_no_value_fits_is_refused_where_a_grammar_is_made(part: Any, place: str) -> None:
    mistake = find_schema_problem({"properties": {"a": part}}, grammar=True)
    assert mistake is not None and (mistake.code, mistake.location) == ("invalid_schema", f"$.properties.a.{place}")
    assert find_schema_problem({"properties": {"a": part}}) is None


@pytest.mark.parametrize(
    "part",
    [
        {"type": "integer", "minimum": 3, "maximum": 3},
        {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
        {"type": "number", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
        {"type": "integer", "minimum": 3.0, "maximum": 4},
        {"type": "string", "minLength": 3, "maxLength": 3},
    ],
)
def test_bounds_between_which_there_is_something_are_accepted(part: Any) -> None:
    assert find_schema_problem(part, grammar=True) is None
    assert not fits({"type": "json_schema", "json_schema": part}, "")  # it can be compiled
