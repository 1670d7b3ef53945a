"""Untrusted JSON: its limits, and what is refused although Python's parser accepts it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_rft.rows.strict_json import MAX_DEPTH, MAX_VALUES, parse_json, parse_untrusted_json

params = pytest.mark.parametrize


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@params(
    "value",
    [
        None,
        1.5,
        "ä\U0001f600\ud800",
        {"a": [True, {"b": "c, [d], {e}"}]},
        ["\\", '\\"[,{', '"'],
        [0] * (MAX_VALUES - 1),
        {str(i): i for i in range(MAX_VALUES - 1)},
        ",[{" * MAX_VALUES,
        json.loads(nested(MAX_DEPTH)),
    ],
    ids=range(9),
)
def test_values_within_the_limits_are_parsed(value: Any) -> None:
    text = json.dumps(value)
    assert parse_untrusted_json(text) == parse_untrusted_json(b"\xef\xbb\xbf" + text.encode()) == (value, (), "")


@params(
    ("text", "why"),
    [
        ("[0" + ",0" * (MAX_VALUES - 1) + "]", "it has more than 100,000 values"),
        ("[" + "[]," * (MAX_VALUES // 2) + "0]", "it has more than 100,000 values"),
        ('["\\\\"' + ',"\\""' * MAX_VALUES + "]", "it has more than 100,000 values"),
        ("{" + '"":0,' * MAX_VALUES, "it has more than 100,000 values"),
        ('""' * (2 * MAX_VALUES + 1) + "," * MAX_VALUES, "it has more than 100,000 values"),
        (nested(MAX_DEPTH + 1), "it is nested more than 100 levels deep"),
        (nested(5_000), "it is nested more than 100 levels deep"),
        ('{"a":' * 101 + "0" + "}" * 101, "it is nested more than 100 levels deep"),
        ("9" * 4_301, "the number 99999999999999999999... has 4,301 digits; at most 4,300 are allowed"),
        ("", "Expecting value at column 1"),
        ('{"a": 1,\n "b"}', "Expecting ':' delimiter at line 2, column 5"),
        (b'"\xff"', "it is not UTF-8 text"),
        ("[1]".encode("utf-16"), "it is not UTF-8 text"),
    ],
)
def test_values_beyond_the_limits_are_refused(text: str | bytes, why: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_untrusted_json(text)
    assert str(refused.value) == why


def test_a_caller_may_set_another_number_of_values() -> None:
    assert parse_untrusted_json("[0,0]", 3).value == [0, 0]
    with pytest.raises(ValueError, match="more than 2 values"):
        parse_untrusted_json("[0,0]", 2)


@params(
    ("text", "why"),
    [
        ("[NaN, 1e999]", "NaN is not a JSON number"),
        ("[-Infinity]", "-Infinity is not a JSON number"),
        ("-1e999", "the number -1e999 is too large"),
    ],
)
def test_the_caller_decides_about_numbers_that_are_not_finite(text: str, why: str) -> None:
    parsed = parse_untrusted_json(text)
    assert parsed.number_error == why
    for refused in (parsed.check_numbers, lambda: parse_json(text)):
        with pytest.raises(ValueError, match=why):
            refused()


def test_duplicate_keys_are_named_once_and_in_order() -> None:
    text = '{"a": 1, "b": {"c": 1, "c": 2}, "d": 1, "a": {"c": 0, "c": 0}, "a": 3}'
    assert parse_json(text) == ({"a": 3, "b": {"c": 2}, "d": 1}, ("c", "a"), "")


def test_rows_have_no_limit_on_values() -> None:
    row = {"messages": [], "grid": [0] * (2 * MAX_VALUES)}
    assert parse_json(json.dumps(row)).value == row
