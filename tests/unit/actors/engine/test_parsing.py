"""Turns of gpt-oss, in the vocabulary and the format of `openai_harmony` itself."""

from __future__ import annotations

import pytest

from actors.engine.parsing import HarmonyParser, ParsedTurn

PARSE = HarmonyParser()
THINKS = "<|channel|>analysis<|message|>I look it up.<|end|>"
START = "<|start|>assistant"


def call(name: str, arguments: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        (THINKS + START + call("find", '{"id": 1}'), ParsedTurn("", (("find", '{"id": 1}'),), thought="I look it up.")),
        (
            call("find", '{"id": 1}') + START + call("sell", "{}"),
            ParsedTurn("", (("find", '{"id": 1}'), ("sell", "{}"))),
        ),
        (
            f"{THINKS}{START}<|channel|>commentary<|message|>Wait.<|end|>{START}{call('find', '{}')}",
            ParsedTurn("Wait.", (("find", "{}"),), thought="I look it up."),
        ),
        (
            f"{THINKS}{START}<|channel|>final<|message|>It is seven.<|return|>",
            ParsedTurn("It is seven.", thought="I look it up."),
        ),
        ("<|channel|>final<|message|>It is sev", ParsedTurn("It is sev")),
        (THINKS + START + " to=functions.find<|channel|>comm", ParsedTurn("", malformed=True)),
    ],
    ids=["call", "two calls", "text and call", "answer", "cut answer", "cut call"],
)
def test_a_turn_in_harmonys_format(text: str, turn: ParsedTurn) -> None:
    assert PARSE(text, ()) == turn


def test_a_turn_that_is_no_harmony_is_no_call() -> None:
    assert PARSE("<|message|><|message|><|start|>", ()).calls == ()
