"""Turns of gpt-oss, in the format of `openai_harmony` itself, and calls whose schemas have references."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from agent_rft.actors.engine.chat.turn_parsers import HarmonyParser, ParsedTurn, load_parser
from agent_rft.chat.families import FAMILIES, find_family_without_calls
from tests.support.families import TINY

PARSE = HarmonyParser()
THINKS = "<|channel|>analysis<|message|>I look it up.<|end|>"
START = "<|start|>assistant"


def call(name: str, arguments: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        (
            THINKS + START + call("find", '{"id": 1}'),
            ParsedTurn("", (("find", '{"id": 1}'),), reasoning="I look it up."),
        ),
        (
            call("find", '{"id": 1}') + START + call("sell", "{}"),
            ParsedTurn("", (("find", '{"id": 1}'), ("sell", "{}"))),
        ),
        (
            f"{THINKS}{START}<|channel|>commentary<|message|>Wait.<|end|>{START}{call('find', '{}')}",
            ParsedTurn("Wait.", (("find", "{}"),), reasoning="I look it up."),
        ),
        (
            f"{THINKS}{START}<|channel|>final<|message|>It is seven.<|return|>",
            ParsedTurn("It is seven.", reasoning="I look it up."),
        ),
        ("<|channel|>final<|message|>It is sev", ParsedTurn("It is sev")),
        (THINKS + START + " to=functions.find<|channel|>comm", ParsedTurn("", is_malformed=True)),
    ],
    ids=["call", "two calls", "text and call", "answer", "cut answer", "cut call"],
)
def test_a_turn_in_harmonys_format(text: str, turn: ParsedTurn) -> None:
    assert PARSE(text, ()) == turn


def test_a_turn_that_is_no_harmony_is_no_call() -> None:
    assert PARSE("<|message|><|message|><|start|>", ()).calls == ()


@pytest.mark.parametrize("family", ["hermes", "unknown"])
def test_without_a_tool_parser_a_text_that_looks_like_a_call_is_the_answer(family: str) -> None:
    text = '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>'
    assert load_parser(find_family_without_calls(family), None)(text, ()) == ParsedTurn(text)


ITEM = {"type": "object", "properties": {"name": {"type": "string"}, "count": {"type": "integer"}}}
BASKET = {
    "type": "object",
    "properties": {"item": {"$ref": "#/$defs/Item"}, "count": {"$ref": "#/$defs/Count"}, "name": {"type": "string"}},
    "$defs": {"Item": ITEM, "Count": {"type": "integer"}},
}


WRITTEN = {
    "gemma4": '<|tool_call>call:buy{item:{name:<|"|>7<|"|>,count:2},count:3,name:<|"|>8<|"|>}<tool_call|>',
    "glm4": '<tool_call>buy\n<arg_key>item</arg_key>\n<arg_value>{"name": "7", "count": 2}</arg_value>\n'
    "<arg_key>count</arg_key>\n<arg_value>3</arg_value>\n<arg_key>name</arg_key>\n<arg_value>8</arg_value>\n</tool_call>",
    "qwen3_coder": '<tool_call>\n<function=buy>\n<parameter=item>\n{"name": "7", "count": 2}\n</parameter>\n'
    "<parameter=count>\n3\n</parameter>\n<parameter=name>\n8\n</parameter>\n</function>\n</tool_call>",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_arguments_have_the_types_that_their_schema_refers_to(name: str, tmp_path: Path) -> None:
    [family] = [family for family in FAMILIES if family.name == name]
    parse = load_parser(family, AutoTokenizer.from_pretrained(TINY[name].write(tmp_path)))
    tool = {"type": "function", "function": {"name": "buy", "description": "", "parameters": BASKET}}
    [(_, arguments)] = parse(WRITTEN[name], [tool]).calls
    assert json.loads(arguments) == {"item": {"name": "7", "count": 2}, "count": 3, "name": "8"}


def test_a_schema_that_contains_itself_is_given_to_the_parser_as_it_is(tmp_path: Path) -> None:
    [family] = [family for family in FAMILIES if family.name == "hermes"]
    parse = load_parser(family, AutoTokenizer.from_pretrained(TINY["hermes"].write(tmp_path)))
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}}}
    tool = {"type": "function", "function": {"name": "cut", "parameters": tree}}
    text = '<tool_call>\n{"name": "cut", "arguments": {"left": {}}}\n</tool_call>'
    assert parse(text, [tool]).calls == (("cut", '{"left": {}}'),)
