"""Generated doctor's visits: findings with their side, and a finding that is only talked about.

A finding has one code for each side and one for `unspecified`. A finding that is only talked about must not be coded:
it is denied, from the past, not yet confirmed, or belongs to a parent. Training and test use different chapters.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from examples.icd10.codes import Code, CodeList

Split = Literal["train", "test"]
Side = Literal["right", "left", "bilateral"]

CHAPTERS: Final[dict[Split, dict[int, int]]] = {
    "train": {2: 12, 7: 24, 13: 24, 17: 16},
    "test": {6: 13, 8: 20, 12: 10, 14: 6},
}
"""Approximate number of findings from each chapter. Training: neoplasms, eye, bones and muscles, malformations.
Test: nerves, ear, skin, breast.
"""
SIDES: Final[tuple[Side, ...]] = ("right", "left", "bilateral")
FOUND: Final = ("You have {}.", "This is {}.", "The exam shows {}.")
DENIED_OR_OPEN: Final = ("There is no {}.", "I see no {}.", "We still have to rule out {}.", "It may be {}; we test.")
OF_OTHER_DAYS: Final = ("My mother had {}.", "My father has {}.", "Years ago I had {}.", "As a child I had {}.")
TWO_SHARE: Final = 0.25
"""Share of visits with two findings."""
PATIENT_SHARE: Final = 0.25
"""Share of visits with one finding in which the patient names the side and the doctor the finding."""
MAX_NAME_CHARS: Final = 36
MAX_WORD_CHARS: Final = 11
"""Maximum length of a word, because a small model often copies longer words incorrectly."""
_UNSUITABLE: Final = re.compile(
    r"\b(other|unspecified|unilateral|bilateral|right|left|specified|due|status|uncertain)\b|[^a-z ]"
    r"|ovar|fallopian|broad ligament|luteum|endometri|testi|sperm",  # patients have no sex here
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of a doctor, and its codes. `parent` is the group of the codes and is not billed itself."""

    name: str
    chapter: int
    parent: str
    unspecified: str
    codes: dict[Side, str]

    @property
    def all_codes(self) -> list[str]:
        return [self.unspecified, *self.codes.values()]


@dataclass(frozen=True, slots=True)
class Visit:
    """Transcript of a visit, the current findings with their sides, and a finding that is only talked about."""

    transcript: str
    found: tuple[tuple[Finding, Side], ...]
    other: Finding

    @property
    def codes(self) -> list[str]:
        return [finding.codes[side] for finding, side in self.found]


def findings(codes: CodeList) -> list[Finding]:
    """Return all groups of codes that differ only in the side, in the order of the codes."""
    groups = defaultdict[str, list[Code]](list)
    for code in codes.billable:
        groups[code.parent].append(code)
    found = (_finding(codes.codes.get(parent), group) for parent, group in groups.items())
    return [finding for finding in found if finding is not None]


def _finding(parent: Code | None, group: Sequence[Code]) -> Finding | None:
    if parent is None or not _is_said(parent.text) or not 3 <= len(group) <= len(SIDES) + 1:
        return None
    sides = dict[Side, str]()
    unspecified = list[str]()
    for code in group:
        words = re.findall(r"[a-z]+", code.text.lower())
        named: list[Side] = [side for side in SIDES if side in words]
        if len(named) == 1 and named[0] not in sides:
            sides[named[0]] = code.code
        elif not named and "unspecified" in words:
            unspecified.append(code.code)
    if len(unspecified) != 1 or len(sides) + 1 != len(group):
        return None
    name = parent.text[0].lower() + parent.text[1:]
    return Finding(name, parent.chapter, parent.code, unspecified[0], sides)


def _is_said(text: str) -> bool:
    """Return whether a doctor might use this name: it consists of a few plain words."""
    words = text.split()
    short = len(text) <= MAX_NAME_CHARS and max(map(len, words)) <= MAX_WORD_CHARS
    return short and len(words) > 1 and not _UNSUITABLE.search(text)


def split_of(finding: Finding) -> Split | None:
    return next((split for split, chapters in CHAPTERS.items() if finding.chapter in chapters), None)


def draw_visit(known: Sequence[Finding], rng: random.Random) -> Visit:
    """Return a random conversation of two to four lines: one or two findings, and one that is only talked about."""
    num = 2 if rng.random() < TWO_SHARE else 1
    *drawn, other = _unlike(known, num + 1, rng)
    found = tuple((finding, rng.choice(list(finding.codes))) for finding in drawn)
    patient_tells = num == 1 and rng.random() < PATIENT_SHARE
    said = [finding.name if patient_tells else f"{finding.name}, {side}" for finding, side in found]
    patient = [f"It is {side}." for _, side in found if patient_tells]
    doctor = [rng.choice(FOUND).format(said[0])]
    if rng.random() < 0.5:
        patient.append(rng.choice(OF_OTHER_DAYS).format(other.name))
    else:
        doctor.insert(rng.randint(0, 1), rng.choice(DENIED_OR_OPEN).format(other.name))
    lines = [f"Patient: {' '.join(patient) or 'What is it?'}", f"Doctor: {' '.join(doctor)}"]
    if num == 2:
        lines += ["Patient: Anything else?", f"Doctor: Yes, {said[1]}."]
    return Visit("\n".join(lines), found, other)


def _unlike(known: Sequence[Finding], num: int, rng: random.Random) -> list[Finding]:
    """Return random findings from different groups of the list, so that no two are nearly the same."""
    while True:
        drawn = rng.sample(list(known), num)
        if all(one.parent[:3] != other.parent[:3] for one, other in pairwise(sorted(drawn, key=lambda f: f.parent))):
            return drawn
