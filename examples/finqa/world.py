"""Generated companies and their annual reports, the same every time, as entries in the release's format."""

from __future__ import annotations

import random
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import Any, Final

UNITS: Final = {
    "revenue": "million",
    "debt": "million",
    "margin": "percent",
    "staff": "thousand",
    "backlog": "billion",
    "tax rate": "percent",
}
"""Items in the reports, and the unit of each item."""
PAGES: Final = (("revenue", "debt", "margin"), ("staff", "backlog", "tax rate"))
YEARS: Final = (2022, 2023)
_STARTS: Final = ["Alt", "Bran", "Cor", "Dray", "Els", "Hal", "Jor", "Kel", "Lin", "Mar", "Os", "Quin", "Stel", "Wex"]
_ENDS: Final = ["berg", "combe", "field", "loch", "mont", "port", "ridge", "ster", "ton", "well"]
_ASKED: Final = (
    "What was the {item} of {company} in {year}?",
    "How high was {company}'s {item} in {year}?",
    "{company}: {item} in {year}?",
)


@dataclass(frozen=True, slots=True)
class Fact:
    """Figure on a page of a company's report."""

    company: str
    year: int
    page: int
    item: str
    number: Decimal

    @property
    def unit(self) -> str:
        return UNITS[self.item]

    @property
    def answer(self) -> str:
        return f"{self.number} {self.unit}"

    @property
    def path(self) -> str:
        return f"{self.company}/{self.year}/page_{self.page}"


def make_facts(seed: int = 0) -> list[Fact]:
    """Return all figures of all companies, in a random order."""
    rng = random.Random(seed)
    facts = [
        Fact(start + end, year, page, item, _draw(rng, UNITS[item]))
        for start, end in product(_STARTS, _ENDS)
        for year in YEARS
        for page, items in enumerate(PAGES, 1)
        for item in items
    ]
    rng.shuffle(facts)
    return facts


def _draw(rng: random.Random, unit: str) -> Decimal:
    """Return a random number that does not end with a zero, so that it can be written in only one way."""
    match unit:
        case "million":
            return Decimal(rng.randint(102, 989))
        case "billion":
            return Decimal(10 * rng.randint(1, 9) + rng.randint(1, 9)) / 10
        case _:
            return Decimal(10 * rng.randint(2, 48) + rng.randint(1, 9)) / 10


def entries(facts: list[Fact], seed: int = 1) -> list[dict[str, Any]]:
    """Return an entry in the release's format for each figure. Entries of one page have the same text."""
    rng = random.Random(seed)
    pages = dict[str, list[Fact]]()
    for fact in facts:
        pages.setdefault(fact.path, []).append(fact)
    made = list[dict[str, Any]]()
    for number, fact in enumerate(facts, 1):
        page = sorted(pages[fact.path], key=lambda each: list(UNITS).index(each.item))
        share = fact.unit == "percent"
        made.append(
            {
                "id": f"{fact.path}.pdf-{number}",
                "filename": f"{fact.path}.pdf",
                "pre_text": [f"{fact.company}, annual report {fact.year}."],
                "post_text": [],
                "table": [["", str(fact.year)], *([each.item, each.answer] for each in page)],
                "qa": {
                    "question": rng.choice(_ASKED).format(item=fact.item, company=fact.company, year=fact.year),
                    "answer": fact.answer,
                    "exe_ans": float(fact.number / 100 if share else fact.number),
                    "program": "",
                },
            }
        )
    return made
