"""The glossary is a sorted list of terms, each with a link, and has all data types that the packages share."""

from __future__ import annotations

import inspect
import re

from agent_rft import types
from tests.support.paths import ROOT

TEXT = (ROOT / "docs" / "glossary.md").read_text()
ENTRIES = dict(re.findall(r"(?ms)^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT))


def test_terms_are_sorted_and_appear_once() -> None:
    terms = re.findall(r"(?m)^## (.+)$", TEXT)

    assert terms == sorted({term.casefold(): term for term in terms}.values(), key=str.casefold)


def test_each_term_is_short_and_links_to_where_it_is_explained() -> None:
    assert ENTRIES
    assert not [term for term, text in ENTRIES.items() if not re.search(r"\]\([\w/-]+\.md", text)]
    assert not [term for term, text in ENTRIES.items() if len(text.split()) > 60]


def test_each_data_type_is_named() -> None:
    classes = [
        name for name, value in vars(types).items() if inspect.isclass(value) and value.__module__ == "agent_rft.types"
    ]

    assert "Rollout" in classes
    assert not [name for name in classes if f"`{name}`" not in TEXT]
