"""The glossary is one sorted table of terms, each with a link, and has all data types that the packages share."""

from __future__ import annotations

import inspect
import re

from agent_rft import types
from tests.lint.plain_names import WORDS, glossary_rows

ROWS = glossary_rows()


def test_terms_are_sorted_and_appear_once() -> None:
    terms = [row.term for row in ROWS]

    assert len(terms) > 80
    assert terms == sorted({term.casefold(): term for term in terms}.values(), key=str.casefold)


def test_each_term_is_short_and_links_to_where_it_is_explained() -> None:
    assert not [row.term for row in ROWS if not re.search(r"\]\([\w/-]+\.md", row.see)]
    assert not [row.term for row in ROWS if len(row.meaning.split()) > 40]


def test_each_data_type_is_named() -> None:
    classes = [
        name for name, value in vars(types).items() if inspect.isclass(value) and value.__module__ == "agent_rft.types"
    ]
    text = " ".join(row.meaning for row in ROWS)

    assert "Rollout" in classes
    assert not [name for name in classes if f"`{name}`" not in text]


def test_the_replaced_words_are_those_of_the_table() -> None:
    assert (WORDS["seat"], WORDS["thoughts"]) == ("reservation", "reasoning")
    assert set(WORDS) == {word for row in ROWS for word in re.findall(r"`(\w+)`", row.replaces)}
