"""Each problem code of the packages is explained in the registry, and nothing else is."""

from __future__ import annotations

import re

import pytest

from agent_rft.problems import PROBLEM_CODE_GROUPS, PROBLEM_CODES, find_code, stops_accepted_job
from agent_rft.problems.problem_code import CheckCode
from tests.support.codes import ANY, used_codes

USED = used_codes()


def test_every_code_is_registered() -> None:
    families = {re.sub(r"<\w+>", ANY, name) for name in PROBLEM_CODES}
    missing = {code: places for code, places in USED.items() if code not in families and find_code(code) is None}
    assert not missing, "explain them in agent_rft/problems"


def test_every_registered_code_is_used() -> None:
    patterns = [re.compile(re.escape(code).replace(ANY, r"[\w<>]+")) for code in USED]
    unused = [name for name in PROBLEM_CODES if not any(pattern.fullmatch(name) for pattern in patterns)]
    assert not unused, "nothing uses them any more: remove them"


def test_the_search_finds_each_way_of_giving_a_code() -> None:
    ways = {
        "duplicate_key": "an argument by position",
        "invalid_n_examples": "a constant",
        "missing_api_key": "an argument of a function that passes it on",
        "unknown_url": "a table",
        "user_error": "a conditional expression",
        f"invalid_{ANY}": "a computed code",
        "truncated_sampling": "a variable",
    }
    assert ways.keys() <= USED.keys()


def test_a_code_is_in_one_group_only() -> None:
    assert sum(len(group) for group in PROBLEM_CODE_GROUPS.values()) == len(PROBLEM_CODES)


@pytest.mark.parametrize("name", PROBLEM_CODES)
def test_an_entry_says_more_than_its_name(name: str) -> None:
    code = PROBLEM_CODES[name]
    for text in (code.meaning, code.fix):
        assert text[0].isupper() or text[0] == "`"
        assert text.endswith(".") and "  " not in text


def test_a_computed_code_has_the_entry_of_its_family() -> None:
    assert find_code("invalid_int_parsing") == "invalid_<type>"
    assert find_code("unreadable_job") == "unreadable_<file>"
    assert find_code("nodes_syntax") == "<file>_syntax"
    assert find_code("invalid_row") == "invalid_row"
    assert find_code("no_such_code") is None


def test_every_code_of_a_check_says_whether_it_stops_a_job_that_was_accepted_before() -> None:
    checks = ("cluster/checks/", "cluster/planning/", "agent_rft/spec/", "agent_rft/rows/")
    found = {code for code, places in USED.items() if any(place.startswith(checks) for place in places)}
    registered = {entry for code in found if (entry := find_code(code)) is not None}
    assert len(registered) > 40
    assert [entry for entry in registered if not isinstance(PROBLEM_CODES[entry], CheckCode)] == []


def test_a_code_that_does_not_say_so_stops_it() -> None:
    assert (
        not stops_accepted_job("row_too_long")
        and stops_accepted_job("missing_model")
        and stops_accepted_job("setting_differs")
    )
    assert stops_accepted_job("no_such_code") and stops_accepted_job("not_found")
