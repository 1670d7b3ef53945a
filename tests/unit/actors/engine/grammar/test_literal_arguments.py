"""Arguments that are not JSON: what a family writes fits, what the schema forbids does not, and the parser reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agent_rft.actors.engine.chat.turn_parsers import load_parser
from agent_rft.actors.engine.grammar.literal_arguments import LITERAL_STYLES, build_literal_format
from agent_rft.actors.engine.grammar.structural_tags import build_turn_structure
from agent_rft.chat.families import find_family
from tests.support.families import TINY
from tests.support.grammars import fits

CITY = {"type": "string", "enum": ["Rome", "it's Pisa"]}
PLACE = {
    "type": "object",
    "properties": {"city": CITY, "zip": {"type": "integer"}},
    "required": ["city"],
}
SCHEMA = {
    "type": "object",
    "properties": {
        "to": PLACE,
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 7}},
        "fast": {"type": "boolean"},
        "note": {"type": ["string", "null"]},
    },
    "required": ["to", "fast"],
}
GIVEN = {
    "gemma": (
        '<|tool_call>call:send{days:[1,7],fast:true,note:<|"|>two\n"lines"<|"|>,to:{city:<|"|>Rome<|"|>,zip:12}}<tool_call|>',
        {"days": [1, 7], "fast": True, "note": 'two\n"lines"', "to": {"city": "Rome", "zip": 12}},
    ),
    "python": (
        "<|tool_call_start|>[send(to={'city': 'it\\'s Pisa'}, days=[1, 7], fast=False, note=None)]<|tool_call_end|>",
        {"to": {"city": "it's Pisa"}, "days": [1, 7], "fast": False, "note": None},
    ),
}
FAMILY = {"gemma": "gemma4", "python": "lfm2"}
WRONG = {
    "gemma": [
        "{fast:true}",  # `to` is required
        '{to:{city:<|"|>Oslo<|"|>},fast:true}',  # in another order, another city
        '{fast:true,to:{city:<|"|>Oslo<|"|>}}',
        '{fast:yes,to:{city:<|"|>Rome<|"|>}}',
        '{days:[<|"|>8<|"|>],fast:true,to:{city:<|"|>Rome<|"|>}}',
        '{fast:true,to:{city:<|"|>Rome<|"|>},more:1}',
        '{fast:true,,to:{city:<|"|>Rome<|"|>}}',
    ],
    "python": [
        "(fast=True)",
        "(to={'city': 'Oslo'}, fast=True)",
        "(to={'city': 'Rome'}, fast=true)",
        "(to={'city': 'Rome'}, days=['8'], fast=True)",
        "(to={'city': 'Rome'}, fast=True, more=1)",
        "(to={'city': 'Rome'}, fast=True, note='two\nlines')",
    ],
}
AROUND = {"gemma": "{%s}", "python": "(%s)"}


def arguments_fit(schema: dict[str, Any], style: str, text: str) -> bool:
    return fits(build_literal_format(schema, LITERAL_STYLES[style]), text)


@pytest.mark.parametrize("style", LITERAL_STYLES)
def test_a_call_with_values_of_every_kind_fits_and_is_read_as_it_was_meant(style: str, tmp_path: Path) -> None:
    text, meant = GIVEN[style]
    tools = [{"type": "function", "function": {"name": "send", "parameters": SCHEMA}}]
    family = find_family(FAMILY[style])
    structure = build_turn_structure(tools, {"type": "integer"}, family.call_syntaxes[0])
    assert structure is not None and fits(json.loads(structure)["format"], text)
    tokenizer = AutoTokenizer.from_pretrained(TINY[family.name].write(tmp_path))
    [(name, arguments)] = load_parser(family, tokenizer)(text, tools).calls
    assert (name, json.loads(arguments)) == ("send", meant)


@pytest.mark.parametrize(("style", "text"), [(style, text) for style in WRONG for text in WRONG[style]])
def test_what_the_schema_forbids_does_not_fit(style: str, text: str) -> None:
    assert not arguments_fit(SCHEMA, style, text[1:-1])


@pytest.mark.parametrize(
    ("given", "is_right"),
    [("", True), ("a=1", True), ("c=3", True), ("a=1, c=3", True), ("c=3, a=1", False), ("a=1,", False)],
)
def test_any_optional_argument_may_be_left_out(given: str, is_right: bool) -> None:
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in "abc"}}
    assert arguments_fit(schema, "python", given) is is_right


def test_many_optional_arguments_and_objects_in_them_take_one_rule_each() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(20):
        schema = {"type": "object", "properties": {f"n{number:02}": schema for number in range(40)}}
    content = build_literal_format(schema, LITERAL_STYLES["gemma"])
    assert len(content["grammar"]) < 300_000
    assert fits(content, "n07:{n39:{}},n38:{}") and not fits(content, "n38:{},n07:{}")


def test_objects_without_properties_have_any_and_a_closed_one_has_none() -> None:
    assert arguments_fit({"type": "object"}, "gemma", 'any:<|"|>x<|"|>,more:null')
    assert arguments_fit({}, "python", "any='x', more=None")
    closed = {"type": "object", "additionalProperties": False}
    assert arguments_fit(closed, "python", "") and not arguments_fit(closed, "python", "any=1")


ANYTHING = "a=[1, ['x', {'y': None}]], b={'x': {'z': [True]}}"


@pytest.mark.parametrize(
    "part",
    [True, {}, {"type": ["array", "object"]}, {"$ref": "#there"}, {"allOf": [{"type": "object"}], "minProperties": 1}],
    ids=["true", "empty", "types", "anchor", "allOf"],
)
def test_a_part_without_a_known_form_may_be_anything(part: Any) -> None:
    schema = {"type": "object", "properties": {"a": part, "b": part}, "$defs": {"x": {"$anchor": "there"}}}
    assert arguments_fit(schema, "python", ANYTHING) and not arguments_fit(schema, "python", f"{ANYTHING[:-1]}")
    kept = {"type": "object", "properties": {"b": {"type": "object", "properties": {"it's": {"type": "integer"}}}}}
    assert arguments_fit(kept, "python", "b={'it\\'s': 1}") and not arguments_fit(kept, "python", "b={'it's': 1}")


def test_references_are_followed_and_one_may_lead_back() -> None:
    referred = {"type": "object", "properties": {"to": {"$ref": "#/$defs/place"}}, "$defs": {"place": PLACE}}
    assert arguments_fit(referred, "python", "to={'city': 'Rome'}")
    assert not arguments_fit(referred, "python", "to={'city': 'Oslo'}")
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "size": {"type": "integer"}}}
    assert arguments_fit(tree, "gemma", "left:{left:{size:3},size:2},size:1")
    assert not arguments_fit(tree, "gemma", "left:{right:3}") and not arguments_fit(tree, "gemma", "left:3")
