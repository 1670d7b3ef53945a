"""Generated companies and their filings, the same every time, and the two tools that read them.

The figures of a filing agree with each other: segments add up to the revenue, and the outlook starts at this year's
revenue. Training and test have different companies.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, Literal

Split = Literal["train", "test"]
Topic = Literal["revenue", "segments", "risks", "debt", "outlook"]

TOPICS: Final[tuple[Topic, ...]] = ("revenue", "segments", "risks", "debt", "outlook")
YEAR: Final = 2024
NUM_TEST: Final = 40
NUM_HITS: Final = 5
NOT_FOUND: Final = "not found"
_STARTS: Final = ["Nor", "Bel", "Kar", "Tal", "Ver", "Mon", "Sol", "Fen", "Gal", "Dor", "Lum", "Ras", "Pel"]
_ENDS: Final = ["vale", "dane", "mark", "wick", "stad", "holm", "ford", "bury", "more", "gate"]
_TRADES: Final = ["tools", "pumps", "lamps", "cables", "valves", "motors", "sensors", "pipes", "boilers", "filters"]
_WORD: Final = re.compile(r"[a-z]+|[0-9]+")


@dataclass(frozen=True, slots=True)
class Section:
    """Section of a filing. It measures `subject`, whose value is `now` and was `before` a year ago."""

    number: str
    topic: Topic
    subject: str
    now: int
    before: int
    unit: str
    text: str

    @property
    def rose(self) -> bool:
        return self.now > self.before


@dataclass(frozen=True, slots=True)
class Filing:
    company: str
    split: Split
    sections: dict[Topic, Section]

    def by_number(self) -> dict[str, Section]:
        return {section.number: section for section in self.sections.values()}


class Archive:
    """All filings, by company. The sections' numbers reveal neither company nor topic."""

    def __init__(self, seed: int = 0) -> None:
        rng = random.Random(seed)
        companies = [start + end for start, end in product(_STARTS, _ENDS)]
        rng.shuffle(companies)
        numbers = iter(rng.sample(range(100, 1000), len(TOPICS) * len(companies)))
        self.filings = {
            company: _draw_filing(
                company, "test" if i < NUM_TEST else "train", [str(next(numbers)) for _ in TOPICS], rng
            )
            for i, company in enumerate(companies)
        }
        self._sections = {
            section.number: (filing, section)
            for filing in self.filings.values()
            for section in filing.sections.values()
        }
        self._words = {
            number: set(_WORD.findall(f"{filing.company} {section.topic} {section.subject}".lower()))
            for number, (filing, section) in self._sections.items()
        }
        self._frequency = Counter(word for words in self._words.values() for word in words)

    def of(self, split: Split) -> list[Filing]:
        return [filing for filing in self.filings.values() if filing.split == split]

    def search(self, query: str) -> str:
        """Return the sections that share the rarest words with the query, best first, one per line.

        A line ends with the section's number, because a small model copies the text after a word of its question.
        """
        weights = {
            word: math.log(len(self._words) / self._frequency[word])
            for word in set(_WORD.findall(query.lower()))
            if word in self._frequency
        }
        scores = {
            number: sum(weights[word] for word in words & weights.keys()) for number, words in self._words.items()
        }
        best = sorted((number for number in scores if scores[number] > 0), key=lambda number: -scores[number])
        found = (self._sections[number] for number in best[:NUM_HITS])
        return "\n".join(f"{filing.company} {s.topic}: {s.number}" for filing, s in found) or NOT_FOUND

    def read(self, number: str) -> str:
        found = self._sections.get(number.strip().strip("[]"))
        return f"{found[0].company}: {found[1].text} [{found[1].number}]" if found else NOT_FOUND


def _draw_filing(company: str, split: Split, numbers: list[str], rng: random.Random) -> Filing:
    large, small = rng.sample(_TRADES, 2)
    large_now, large_before = _two(rng, 300, 600)
    small_now, small_before = _two(rng, 60, 250)
    revenue, last = large_now + small_now, large_before + small_before
    if revenue == last:  # neither rose nor fell
        return _draw_filing(company, split, numbers, rng)
    share, share_before = _two(rng, 11, 49)
    debt, debt_before = _two(rng, 20, 290)
    expected = revenue + rng.choice((-1, 1)) * rng.randint(5, 50)
    drawn: tuple[tuple[Topic, str, int, int, str, str], ...] = (
        ("revenue", "revenue", revenue, last, "million", f"Revenue was {revenue} million, {_from(revenue, last)}."),
        (
            *("segments", large, large_now, large_before, "million"),
            f"Sales of {large} were {large_now} million, {_from(large_now, large_before)}. "
            f"Sales of {small} were {small_now} million, {_from(small_now, small_before)}.",
        ),
        (
            *("risks", "customer", share, share_before, "percent"),
            f"The largest customer buys {share} percent, {_from(share, share_before)}. A loss would hurt.",
        ),
        ("debt", "debt", debt, debt_before, "million", f"Debt was {debt} million, {_from(debt, debt_before)}."),
        (
            *("outlook", "outlook", expected, revenue, "million"),
            f"The outlook for {YEAR + 1} is {expected} million, {_from(expected, revenue)}.",
        ),
    )
    sections = {
        topic: Section(number, topic, subject, now, before, unit, text)
        for number, (topic, subject, now, before, unit, text) in zip(numbers, drawn, strict=True)
    }
    return Filing(company, split, sections)


def _from(now: int, before: int) -> str:
    """Describe the change since last year in words, because a small model can read words but not compare numbers."""
    return f"{'an increase' if now > before else 'a decrease'} from {before}"


def _two(rng: random.Random, low: int, high: int) -> tuple[int, int]:
    now, before = rng.sample(range(low, high), 2)
    return now, before


def claim(section: Section) -> str:
    """Return the sentence of a summary that states the section's point."""
    change = "rose" if section.rose else "fell"
    return f"{section.subject.capitalize()} {change} to {section.now} {section.unit} [{section.number}]."


def summary(sections: Sequence[Section]) -> str:
    return " ".join(map(claim, sections))


def schema(name: str) -> dict[str, Any]:
    """Return a tool's description for the model, in OpenAI's format."""
    parameter, description = TOOLS[name]
    parameters = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS: Final = {"search": ("query", "numbers of sections"), "read": ("section", "the text of a section")}
"""Name of each tool, with its only parameter and its description."""
