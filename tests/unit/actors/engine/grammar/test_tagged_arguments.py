"""Arguments between tags: what the family writes fits and is read as it was meant, what the schema forbids does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agent_rft.actors.engine.chat.turn_parsers import load_parser
from agent_rft.actors.engine.grammar.structural_tags import build_turn_structure
from agent_rft.actors.engine.grammar.tagged_arguments import ARGUMENT_TAGS, build_tagged_format
from agent_rft.chat.families.muse_glimmer import MUSE_GLIMMER
from tests.support.families import TINY
from tests.support.grammars import fits

PLACE = {"type": "object", "properties": {"city": {"enum": ["Rome", "Pisa"]}}, "required": ["city"]}
SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"$ref": "#/$defs/Place"},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 7}},
        "fast": {"type": "boolean"},
        "size": {"enum": ["small", 3]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "kind": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]},
        "count": {"allOf": [{"type": "integer"}]},
        "code": {"type": "string", "enum": ["1", "true", "none"]},
    },
    "required": ["to", "fast"],
    "$defs": {"Place": PLACE},
}
TO = ("to", '{"city": "Rome"}')
FAST = ("fast", "true")


def written(*arguments: tuple[str, str]) -> str:
    return "".join(f'<atem:parameter name="{name}">{value}</atem:parameter>\n' for name, value in arguments)


def arguments_fit(schema: dict[str, Any], *arguments: tuple[str, str]) -> bool:
    return fits(build_tagged_format(schema, ARGUMENT_TAGS["atem"]), written(*arguments))


def test_a_call_with_values_of_every_kind_fits_and_is_read_as_it_was_meant(tmp_path: Path) -> None:
    note = 'two\n"lines" of <b>text</b> & more\n'
    others = [("tags", '["a", "<b>"]'), ("kind", "null"), ("count", "12"), ("code", '"1"')]
    arguments = written(TO, ("days", "[1, 7]"), FAST, ("size", "small"), ("note", note), *others)
    [form] = MUSE_GLIMMER.call_syntaxes
    text = f"{form.begin.format(name='send')}{arguments}{form.end}"
    tools = [{"type": "function", "function": {"name": "send", "parameters": SCHEMA}}]
    structure = build_turn_structure(tools, {"type": "integer"}, form)
    assert structure is not None and fits(json.loads(structure)["format"], text)
    tokenizer = AutoTokenizer.from_pretrained(TINY["muse_glimmer"].write(tmp_path))
    [(name, found)] = load_parser(MUSE_GLIMMER, tokenizer)(text, tools).calls
    meant = {"to": {"city": "Rome"}, "days": [1, 7], "fast": True, "size": "small", "note": note}
    meant |= {"tags": ["a", "<b>"], "kind": None, "count": 12, "code": "1"}
    assert (name, json.loads(found)) == ("send", meant)


@pytest.mark.parametrize(
    "arguments",
    [
        [TO],  # `fast` is required
        [FAST, TO],  # in another order
        [("to", '{"city": "Oslo"}'), FAST],
        [("to", "Rome"), FAST],
        [TO, ("days", "[8]"), FAST],
        [TO, ("fast", "yes")],
        [TO, FAST, ("size", "large")],
        [TO, FAST, ("note", "it ends<|eot|>")],
        [TO, FAST, ("note", "it ends</atem:invoke>")],
        [TO, FAST, ("tags", '["</atem:parameter>"]')],
        [TO, FAST, ("tags", '["<|eom|>"]')],
        [TO, FAST, ("kind", "c")],
        [TO, FAST, ("count", "many")],
        [TO, FAST, ("code", "1")],
        [TO, FAST, ("more", "1")],
    ],
)
def test_what_the_schema_forbids_does_not_fit(arguments: list[tuple[str, str]]) -> None:
    assert not arguments_fit(SCHEMA, *arguments)


def test_arguments_that_are_not_required_may_be_left_out() -> None:
    assert arguments_fit(SCHEMA, TO, FAST)
    assert arguments_fit(SCHEMA, TO, FAST, ("size", "3"), ("note", "null"))
    assert arguments_fit({"type": "object", "properties": {"size": {"type": "integer"}}})


def test_a_value_without_a_known_form_or_end_may_be_anything() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "any": True, "size": {"type": "integer"}}}
    given = [("left", '{"left": {"size": 1}}'), ("any", "as it is"), ("size", "3")]
    assert arguments_fit(tree, *given) and not arguments_fit(tree, *given[:2], ("size", "three"))


def test_objects_without_properties_have_any_and_a_closed_one_has_none() -> None:
    assert arguments_fit({"type": "object"}, ("any", "as it is"), ("more", "3")) and arguments_fit({})
    closed = {"type": "object", "additionalProperties": False}
    assert arguments_fit(closed) and not arguments_fit(closed, ("any", "1"))


def test_far_too_many_arguments_are_compiled_in_no_time_and_may_be_anything() -> None:
    schema = {"type": "object", "properties": {f"n{number}": {"type": "string"} for number in range(2_500)}}
    assert arguments_fit(schema, ("n7", "seven"), ("n3", "three"))
