"""Keys are read without the white space around them, and refused with a reason that does not show them."""

from __future__ import annotations

import pytest

from agent_rft.spec.api_keys import find_key_problem, read_variable


@pytest.mark.parametrize("value", ["sk-1", "sk-1\n", "  sk-1\r\n", "\tsk-1 "])
def test_white_space_around_a_variable_does_not_count(value: str) -> None:
    assert read_variable({"KEY": value}, "KEY") == "sk-1"


@pytest.mark.parametrize("environment", [{}, {"KEY": ""}, {"KEY": " \n"}])
def test_an_empty_variable_is_not_set(environment: dict[str, str]) -> None:
    assert read_variable(environment, "KEY") is None


@pytest.mark.parametrize(
    ("key", "mistake"),
    [
        ("sk-secret", None),
        ("a'b", None),
        ("“sk-secret”", "curly quotes"),
        ("sk‑secret", "curly quotes"),
        ("sk-sec\nret", "line break"),
        ("sk-sec ret", "a space"),
        ("sk-sec\x00ret", "control character"),
        ('"sk-secret"', "is enclosed in quotes"),
        ("'sk-secret'", "is enclosed in quotes"),
    ],
)
def test_a_mistake_is_named_without_the_key(key: str, mistake: str | None) -> None:
    found = find_key_problem(key)
    if mistake is None:
        assert found is None
    else:
        assert found is not None and mistake in found and "sec" not in found
