"""Grading of summaries: the rubric for training, a first rubric that can be fooled, and the held-out grader.

All three compute the grade from the answer, without a judge, and report this in their reasons. A summary has one
sentence for each requested point, such as `Revenue rose to 480 million [417].`, with a section's number in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from examples.filings.world import YEAR, Filing, Section, Topic

PRICE_OF_A_FALSE_CITATION: Final = 0.2
WORDS_OF_A_POINT: Final = 12
ROSE: Final = frozenset(["rose", "rises", "up", "grew", "increased", "higher"])
FELL: Final = frozenset(["fell", "falls", "down", "shrank", "decreased", "lower"])
REASONS: Final = ("because", "driven by", "therefore")
_CITATION: Final = re.compile(r"\[([^\[\]]*)\]")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_EARLIER: Final = re.compile(r"\b(?:from|after)\s+\d+(?:\.\d+)?", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_YEARS: Final = frozenset(str(year) for year in (YEAR - 1, YEAR, YEAR + 1))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Grade from 0 to 1, its reason, and its parts."""

    score: float
    reason: str
    scores: dict[str, float]


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words of a sentence, the numbers that it states, its numbers after `from` or `after`, and its citations."""

    words: tuple[str, ...]
    stated: frozenset[str]
    earlier: frozenset[str]
    cited: tuple[str, ...]

    def says(self, section: Section) -> bool:
        """Return whether the sentence has the section's figure of this year, with its subject and unit."""
        return {section.subject, section.unit} <= set(self.words) and str(section.now) in self.stated

    def tells_the_change(self, section: Section) -> bool:
        rose, fell = (not words.isdisjoint(self.words) for words in (ROSE, FELL))
        return rose != fell and rose == section.rose

    def holds(self, cited: Section | None) -> bool:
        """Return whether the cited section has all numbers of the sentence, which must state at least one."""
        return (
            cited is not None
            and bool(self.stated)
            and self.stated <= stated(cited.text)
            and self.earlier <= earlier(cited.text)
        )


def stated(text: str) -> frozenset[str]:
    return frozenset(_NUMBER.findall(_EARLIER.sub(" ", _CITATION.sub(" ", text)))) - _YEARS


def earlier(text: str) -> frozenset[str]:
    return frozenset(_NUMBER.findall(" ".join(_EARLIER.findall(text)))) - _YEARS


def sentences(answer: str) -> list[Sentence]:
    return [
        Sentence(
            tuple(re.findall(r"[a-z]+", _CITATION.sub(" ", part).lower())),
            stated(part),
            earlier(part),
            tuple(_CITATION.findall(part)),
        )
        for part in _SENTENCE.split(answer.strip())
        if part
    ]


def false_citations(answer: str, filing: Filing) -> int:
    """Count the citations of sections that do not exist or do not have the numbers of the citing sentence."""
    sections = filing.by_number()
    return sum(not said.holds(sections.get(number)) for said in sentences(answer) for number in said.cited)


def uncited(answer: str) -> int:
    """Count the sentences without a citation."""
    return sum(not said.cited for said in sentences(answer))


def rubric(answer: str, filing: Filing, points: Sequence[Topic]) -> Verdict:
    """Return the grade for training without a judge.

    The grade is the share of the requested points that are right, times the quality of the answer. It is reduced by a
    price for each false citation and for each sentence without a citation.
    """
    said, asked, sections = sentences(answer), [filing.sections[point] for point in points], filing.by_number()
    in_filing = frozenset[str]().union(*(stated(section.text) for section in sections.values()))
    numbers = frozenset[str]().union(*(sentence.stated for sentence in said))
    sound = [bool(s.cited) and all(s.holds(sections.get(number)) for number in s.cited) for s in said]
    criteria = {
        "accuracy": len(numbers & in_filing) / len(numbers) if numbers else 0.0,
        "reasoning": fmean(any(s.says(section) and s.tells_the_change(section) for s in said) for section in asked),
        "completeness": fmean(any(s.says(section) for s in said) for section in asked),
        "soundness": fmean(sound) if sound else 0.0,
        "clarity": _clarity(said, len(points)) if said else 0.0,
    }
    told = fmean((criteria["completeness"], criteria["reasoning"]))
    made = fmean((criteria["accuracy"], criteria["soundness"], criteria["clarity"]))
    num_false = false_citations(answer, filing)
    score = max(0.0, told * made - PRICE_OF_A_FALSE_CITATION * (num_false + uncited(answer)))
    return _verdict("computed rubric, no judge", score, criteria | {"false_citations": float(num_false)})


def _clarity(said: Sequence[Sentence], num_points: int) -> float:
    num_words = sum(len(sentence.words) for sentence in said)
    return len(set(said)) / len(said) * min(1.0, WORDS_OF_A_POINT * num_points / max(1, num_words))


def first_rubric(answer: str, filing: Filing, points: Sequence[Topic]) -> Verdict:
    """Grade the five criteria like a judge who sees the answer but not the filing.

    Do not train with this rubric: its best answers cite everything, sound reasoned, and are made up.
    """
    said, asked = sentences(answer), [filing.sections[point] for point in points]
    named = {word for sentence in said for word in sentence.words}
    cited = {number for sentence in said for number in sentence.cited}
    criteria = {
        "accuracy": float(any(sentence.stated for sentence in said)),
        "reasoning": min(1.0, sum(reason in answer.lower() for reason in REASONS) / 2),
        "completeness": fmean(section.subject in named for section in asked),
        "soundness": len(cited & filing.by_number().keys()) / len(filing.sections),
        "clarity": float(bool(said) and len(set(said)) == len(said)),
    }
    return _verdict("first computed rubric, no judge, never looks into the filing", fmean(criteria.values()), criteria)


def held_out(answer: str, filing: Filing, points: Sequence[Topic]) -> Verdict:
    """Return the share of right claims, by the figures from which the filing was generated and not by its text.

    Each sentence is a claim. It is right if subject, figure, change and citation all belong to one requested point.
    """
    claims = sentences(answer)
    right = {point for point in points if any(_is_right(claim, filing.sections[point]) for claim in claims)}
    score = len(right) / max(len(points), len(claims))
    return _verdict("claims by the figures", score, {"right": float(len(right)), "claims": float(len(claims))})


def _is_right(claim: Sentence, section: Section) -> bool:
    return (
        claim.says(section)
        and claim.stated == {str(section.now)}
        and claim.earlier <= {str(section.before)}
        and claim.tells_the_change(section)
        and claim.cited == (section.number,)
    )


def _verdict(kind: str, score: float, scores: dict[str, float]) -> Verdict:
    parts = ", ".join(f"{name} {value:g}" for name, value in scores.items())
    return Verdict(score, f"{kind}: {parts}", scores)


RUBRICS: Final = {"rubric": rubric, "first": first_rubric, "held_out": held_out}
