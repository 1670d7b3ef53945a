"""Fictional companies and their yearly reports, generated with a fixed seed. Training and test companies differ."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Final, Literal

Split = Literal["train", "test"]
YEAR: Final = 2025
NUM_TEST: Final = 50
TERMS: Final[dict[str, tuple[str, ...]]] = {
    "revenue": ("revenue", "sales", "turnover"),
    "profit": ("profit", "earnings"),
    "debt": ("debt", "loans"),
    "orders": ("orders", "backlog"),
    "staff": ("staff", "employees", "workforce", "headcount", "employs"),
    "customers": ("customers", "clients"),
    "plant": ("plant", "factory", "site"),
    "chief": ("chief", "ceo", "executive"),
    "product": ("product", "bestseller"),
    "outlook": ("outlook", "expects", "expected", "forecast", "next"),
}
"""Words that name each topic. Tasks use the first word."""
FILLERS: Final = (
    "The company was founded in a former mill and still has its archive there.",
    "Its annual meeting was held in June and was open to guests.",
    "A choir of its apprentices sang at the opening of the town's library.",
)
MOVED: Final = {
    "revenue": "Revenue {moved} from {before} to {now} million euros over the year.",
    "profit": "After taxes a profit of {now} million euros was left, {way} from {before} million.",
    "debt": "Debt {moved} to {now} million euros, after {before} million a year ago.",
    "orders": "Orders {moved} to {now} million euros, after {before} million.",
}
"""Sentences for facts whose value rose or fell, by topic."""
STATED: Final = {
    "customers": ("It serves {clients:,} customers in 7 countries.", "{clients:,} in 7 countries", ("{clients}",)),
    "plant": ("A new plant in {city} started work in {month}.", "New in {city}", ("{city}",)),
    "chief": ("{first} {last} took over as chief executive in {month}.", "Now {first} {last}", ("{last}",)),
    "product": ("The {best}, a {thing}, was the product that sold best.", "Sold best: {best}", ("{best}",)),
    "outlook": (
        *("For next year the board expects {expected} million euros.", "{expected} million euros"),
        ("{expected}", "million"),
    ),
}
"""Other facts by topic: the report's sentence, its short version for a slide, and the values that a slide must have."""
_STARTS: Final = ("Alder", "Birch", "Cobalt", "Drum", "Ember", "Flint", "Grove", "Harbour", "Iron", "Kestrel", "Lark")
_ENDS: Final = ("works", "line", "craft", "tech", "gear", "form", "side", "core", "point", "field")
_NAMES: Final = {
    "city": ("Kelso", "Oban", "Tartu", "Ghent", "Varna", "Lugo", "Bergen", "Pula", "Turku", "Brno"),
    "first": ("Maria", "Jonas", "Aiko", "Tomas", "Leila", "Pavel", "Nadia", "Erik"),
    "last": ("Okafor", "Lindqvist", "Tanaka", "Novak", "Haddad", "Moreau", "Petrova", "Silva"),
    "best": ("Aerolite", "Quanta", "Vireo", "Nimbus", "Solano", "Tessera", "Orbiter", "Halcyon"),
    "thing": ("pump", "lamp", "valve", "sensor", "cable", "motor"),
    "month": ("March", "May", "June", "September", "October"),
}
WORD: Final = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+|[%€$]")
MEANS: Final = {"%": "percent", "€": "euros", "$": "dollars", "m": "million", "mn": "million", "bn": "billion"}
"""Words for symbols and abbreviated units."""


def words_of(text: str) -> list[str]:
    """Split text into lower-case words and numbers without commas; symbols and abbreviated units become words."""
    found = (word.lower() for word in WORD.findall(text))
    return [word.replace(",", "") if word[0].isdigit() else MEANS.get(word, word) for word in found]


@dataclass(frozen=True)
class Fact:
    """Sentence of a report. A slide that states it contains all `values`; `rose` is None for facts without a change."""

    topic: str
    values: tuple[str, ...]
    text: str
    short: str
    """Short version for an honest slide."""
    rose: bool | None = None

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(words_of(self.text))


@dataclass(frozen=True, slots=True)
class Report:
    company: str
    split: Split
    facts: dict[str, Fact]

    def source(self, topics: Sequence[str]) -> str:
        """Return a text with the facts of `topics` in a fixed order; with all topics, also irrelevant sentences."""
        fillers = FILLERS if len(topics) == len(self.facts) else ()
        sentences = [*(self.facts[topic].text for topic in topics), *fillers]
        random.Random(f"{self.company} {topics}").shuffle(sentences)
        return " ".join([f"{self.company}, report for {YEAR}.", *sentences])


def reports() -> dict[str, Report]:
    """Return the reports of all companies, by company name."""
    rng = random.Random(0)
    names = [start + end for start, end in product(_STARTS, _ENDS)]
    rng.shuffle(names)
    return {name: _report(name, "test" if i < NUM_TEST else "train", rng) for i, name in enumerate(names)}


def _report(company: str, split: Split, rng: random.Random) -> Report:
    numbers = rng.sample(range(31, 980), 2 * len(MOVED) + 1)  # distinct: a wrong number is in no other fact
    drawn: dict[str, Any] = {key: rng.choice(values) for key, values in _NAMES.items()}
    drawn |= {"expected": numbers.pop(), "clients": rng.randint(1_001, 1_999)}
    facts = dict[str, Fact]()
    for topic, sentence in MOVED.items():
        now, before = numbers.pop(), numbers.pop()
        moved, way = ("rose", "up") if now > before else ("fell", "down")
        text = sentence.format(moved=moved, way=way, now=now, before=before)
        facts[topic] = Fact(
            topic, (str(now), "million"), text, f"{moved.capitalize()} to {now} million euros", now > before
        )
    staff, more, grew = rng.randint(2_001, 9_999), rng.randint(11, 30), rng.random() < 0.5
    change = f"{more} {'more' if grew else 'fewer'}"
    text = f"The company employs a staff of {staff:,} people, {change} than a year ago."
    facts["staff"] = Fact("staff", (str(staff),), text, f"{staff:,} people, {change}", grew)
    for topic, (sentence, short, values) in STATED.items():
        wanted = tuple(value.format(**drawn).lower() for value in values)
        facts[topic] = Fact(topic, wanted, sentence.format(**drawn), short.format(**drawn))
    return Report(company, split, facts)
