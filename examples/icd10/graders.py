"""Grading of the codes for a visit: F1 for training, and a held-out grader that is never trained on.

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
    """Grade from 0 to 1, its reason, and its parts."""

    score: float
    reason: str
    scores: dict[str, float]


def f1(answer: str, item: dict[str, Any]) -> Verdict:
    """Return the F1 of the full codes. A repeated code, or a code in another notation than in the list, is wrong."""
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
    """Return the total value of all codes in the answer, divided by the number of expected or of named codes.

    The larger number is the divisor. An expected code has the value 1; another billable code of the same category, 1/2.
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
