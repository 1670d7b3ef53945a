"""How the codes of a visit are graded: the F1 that trains, and another function that is never trained on.

An answer is a list of codes, separated by commas, semicolons or spaces. Everything else in it counts as a wrong code.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

CATEGORY_CHARS: Final = 3
_ITEM: Final = re.compile(r"[^\s,;]+")
_CODE: Final = re.compile(r"(?<![\w.])[A-Z][0-9][0-9A-Z](?:\.[0-9A-Z]{1,4})?(?![\w.]*\w)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A grade from 0 to 1, why, and its parts."""

    score: float
    reason: str
    scores: dict[str, float]


def f1(answer: str, item: dict[str, Any]) -> Verdict:
    """F1 of the full codes. A code that is named twice, or written otherwise than in the list, is a wrong one."""
    wanted: list[str] = item["codes"]
    named = [found.removesuffix(".") for found in _ITEM.findall(answer)]
    right = len(set(named) & set(wanted))
    scores = {
        "precision": right / len(named) if named else 0.0,
        "recall": right / len(wanted),
        "not_found": float(sum(code in item["talked_about"] for code in named)),
        "unspecified": float(sum(code in item["unspecified"] for code in named)),
    }
    reason = f"{right} of {len(wanted)} codes, {len(named) - right} wrong ones"
    return Verdict(2 * right / (len(named) + len(wanted)), reason, scores)


def held_out(answer: str, item: dict[str, Any], billable: Collection[str]) -> Verdict:
    """What the codes anywhere in the answer are worth, by the hierarchy, over those wanted or named, if these are more.

    A code is worth 1 if it is wanted, and 1/2 if it can be billed and another code of its category is wanted.
    """
    wanted: list[str] = item["codes"]
    named = _CODE.findall(answer)
    exact = set(named) & set(wanted)
    left = [code[:CATEGORY_CHARS] for code in wanted if code not in exact]
    near = _matched(left, [code for code in named if code in billable and code not in exact])
    score = (len(exact) + near / 2) / max(len(wanted), len(named))
    return Verdict(score, f"{len(exact)} codes and {near} categories of {len(wanted)}, {len(named)} named", {})


def _matched(categories: Sequence[str], codes: Sequence[str]) -> int:
    left = list(categories)
    for code in codes:
        if code[:CATEGORY_CHARS] in left:
            left.remove(code[:CATEGORY_CHARS])
    return len(categories) - len(left)
