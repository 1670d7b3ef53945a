"""Grader of decks. It compares the visible text of a deck with the report that the deck describes.

A deck states a point if one clause contains the point's values, and the clause, its line or the slide's title names the
point's topic. Invisible words do not count. Each clause that the report does not support lowers the grade.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from examples.slides.measures import Deck, Slide
from examples.slides.world import MEANS, TERMS, WORD, YEAR, Fact, Report, words_of

MIN_PX: Final = 16
MIN_CONTRAST: Final = 4.5
"""Minimum contrast of WCAG 2, level AA."""
MIN_WORDS, MAX_WORDS = 2, 40
"""Minimum and maximum number of words of a good slide."""
WORDS_OF_A_POINT, WORDS_OF_A_SLIDE = 10, 5
"""Words allowed per point and per slide. A deck with more words in total gets a lower grade."""
COPIED_WORDS: Final = 7
"""Consecutive words that count as copied if the source contains the same sequence."""
WORTH_OF_LOOKS: Final = 0.7
PRICE_OF_IGNORED: Final = 0.2
"""Share by which `looks` is lowered if parts of the deck were ignored, since other browsers may draw them."""
ROSE: Final = frozenset(
    ("rose", "rises", "up", "grew", "grows", "growth", "increased", "higher", "more", "rising", "gain")
)
FELL: Final = frozenset(
    ("fell", "falls", "down", "shrank", "decreased", "lower", "fewer", "less", "falling", "decline")
)
UNITS: Final = frozenset(
    ("thousand", "million", "billion", "percent", "euros", "dollars", "people", "customers", "countries")
)
_CLAUSE: Final = re.compile(r"[;.,](?:\s|$)|\sand\s|\s[-–—|]\s")
_LONG: Final = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """Grade from 0 to 1, the reason, and the scores of its parts."""

    score: float
    reason: str
    scores: dict[str, float]


@dataclass(frozen=True)
class Claim:
    """Clause of a slide, with its line and the slide's title. If the clause names no topic, these may name it."""

    text: str
    line: str
    title: str

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(words_of(self.text))

    @property
    def numbers(self) -> frozenset[str]:
        return frozenset(word for word in self.words if word[0].isdigit()) - {str(YEAR)}

    @cached_property
    def topics(self) -> frozenset[str]:
        """Topics that the clause names, or else its line, or else the title. Empty if several topics are possible."""
        for text, most in ((self.text, 2), (self.line, 1), (self.title, 1)):
            if named := _topics(text):
                return named if len(named) <= most else frozenset()
        return frozenset()

    def states(self, fact: Fact) -> bool:
        """Return whether the claim is on the fact's topic and has no number, unit or direction that the fact lacks."""
        rose, fell = not self.words.isdisjoint(ROSE), not self.words.isdisjoint(FELL)
        if (rose or fell) and (rose == fell or fact.rose is not rose):
            return False
        return fact.topic in self.topics and self.numbers <= fact.words and self.words & UNITS <= fact.words


def _topics(text: str) -> frozenset[str]:
    words = set(words_of(text))
    return frozenset(topic for topic, terms in TERMS.items() if not words.isdisjoint(terms))


def claims(slide: Slide) -> Iterator[Claim]:
    """Yield the clauses of a slide's lines, and of the title if it contains a number."""
    above = slide.title or next(iter(slide.blocks), "")
    titles = [slide.title] if any(map(str.isdigit, slide.title)) else []
    for line in (*titles, *slide.blocks):
        for text in _CLAUSE.split(line):
            if WORD.search(text):
                yield Claim(text.strip(), line, above)


def is_faithful(claim: Claim, facts: Sequence[Fact], known: frozenset[str]) -> bool:
    """Return whether `facts` support the claim and its names are among the source's words (`known`)."""
    names = {word.lower() for word in WORD.findall(claim.text)[1:] if word[0].isupper()} - MEANS.keys()
    shared = {word for word in claim.words & known if len(word) >= _LONG or word.isdigit()}
    if not names <= known or not (shared or claim.words & (ROSE | FELL)):
        return False
    return not (claim.numbers or claim.topics) or any(claim.states(fact) for fact in facts)


def grade(deck: Deck, report: Report, topics: Sequence[str], points: Sequence[str], num_slides: int) -> Verdict:
    """Grade a deck. The task was to make `num_slides` slides on `points` from a source with the facts of `topics`."""
    facts = [report.facts[topic] for topic in topics]
    source = report.source(topics)
    known = frozenset(words_of(source))
    # Repeated clauses of a slide count once, so that repeating true clauses cannot outweigh false ones.
    made = list({(c.text.lower(), c.title): c for slide in deck.slides for c in claims(slide)}.values())
    false = [claim for claim in made if not is_faithful(claim, facts, known)]
    missing = [point for point in points if not any(_covers(claim, report.facts[point]) for claim in made)]
    seen = sum(slide.num_words for slide in deck.slides)
    allowed = WORDS_OF_A_POINT * len(points) + WORDS_OF_A_SLIDE * num_slides
    most, least = max(num_slides, deck.num_slides), min(num_slides, deck.num_slides)
    scores = {
        "coverage": 1 - len(missing) / len(points),
        "faithfulness": 1 - len(false) / len(made) if made else 0.0,
        "brevity": min(1.0, allowed / max(seen, 1)) * (least / most) * (1 - _copied(deck, source)),
        "looks": sum(map(looks, deck.slides)) / most * (1 - PRICE_OF_IGNORED * bool(deck.ignored)),
    }
    score = scores["coverage"] * scores["faithfulness"] * scores["brevity"]
    score *= 1 - WORTH_OF_LOOKS + WORTH_OF_LOOKS * scores["looks"]
    notes = [f"missing: {', '.join(missing)}"] if missing else []
    notes += [f"not in the source: {'; '.join(claim.text[:60] for claim in false[:3])}"] if false else []
    notes += [
        f"slide {i}: {', '.join(found)}" for i, slide in enumerate(deck.slides, 1) if (found := complaints(slide))
    ]
    parts = ", ".join(f"{name} {value:.2f}" for name, value in scores.items())
    return Verdict(round(score, 4), "; ".join((parts, *notes)), scores)


def _covers(claim: Claim, fact: Fact) -> bool:
    return set(fact.values) <= claim.words and claim.states(fact)


def _copied(deck: Deck, source: str) -> float:
    """Return the share of the deck's words that belong to sequences of COPIED_WORDS words of the source."""
    wanted = words_of(source)
    runs = {tuple(wanted[i : i + COPIED_WORDS]) for i in range(len(wanted) - COPIED_WORDS + 1)}
    total = copied = 0
    for line in (line for slide in deck.slides for line in (slide.title, *slide.blocks)):
        words = words_of(line)
        found = set[int]()
        for i in range(len(words) - COPIED_WORDS + 1):
            if tuple(words[i : i + COPIED_WORDS]) in runs:
                found |= set(range(i, i + COPIED_WORDS))
        total, copied = total + len(words), copied + len(found)
    return copied / max(total, 1)


def looks(slide: Slide) -> float:
    """Return the share of the six visual checks that a slide passes; 0 if it hides words or shows none."""
    return 0.0 if slide.hidden or not slide.num_words else 1 - len(complaints(slide)) / 6


def complaints(slide: Slide) -> list[str]:
    """Return human-readable descriptions of the visual problems of a slide, which the model also sees."""
    found = [f"{slide.hidden} words that cannot be seen"] if slide.hidden else []
    found += [f"{slide.cut} words not on the slide"] if slide.cut else []
    found += [f"{slide.overlapping} words overlap"] if slide.overlapping else []
    found += [f"font of {slide.font_px:g} px (min {MIN_PX})"] if slide.font_px < MIN_PX else []
    found += [f"contrast {slide.contrast:g} (min {MIN_CONTRAST})"] if slide.contrast < MIN_CONTRAST else []
    filled = MIN_WORDS <= slide.num_words <= MAX_WORDS
    found += [] if filled else [f"{slide.num_words} words ({MIN_WORDS} to {MAX_WORDS})"]
    return found + ([] if slide.title else ["no title"])


def describe(name: str, deck: Deck) -> str:
    """Return the tool's output for a deck: its name and the visual problems of each slide."""
    ignored = f"; ignored: {', '.join(deck.ignored)}" if deck.ignored else ""
    slides = [f"slide {i}: {', '.join(complaints(slide)) or 'ok'}" for i, slide in enumerate(deck.slides, 1)]
    more = f"; {deck.num_slides - len(slides)} more not drawn" if deck.num_slides > len(slides) else ""
    return f"deck {name}: {'; '.join(slides) or 'no <section>'}{more}{ignored}"
