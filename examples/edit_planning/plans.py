"""Grading of plans. A plan is a list of files: one path per line, as git writes it, and each path once.

Files that a change adds are not expected, because nothing in the checkout reveals their names.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

MOST: Final = 2.0
"""Maximum number of lines in a plan, as a multiple of the number of changed files. Longer plans have the grade 0."""


def plan_of(answer: str) -> list[str]:
    return [line.strip() for line in answer.split("\n") if line.strip()]


def f1(answer: str, files: Collection[str]) -> float:
    """Return the grade for training: the harmonic mean of precision and recall. A repeated file counts as wrong."""
    plan = plan_of(answer)
    if len(plan) > MOST * len(files):
        return 0.0
    right = len(set(plan) & set(files))
    return 2 * right / (len(plan) + len(files))


def exact(answer: str, files: Collection[str]) -> float:
    """Return the held-out grade: 1 if the plan has exactly the files of the change, else 0."""
    return float(sorted(plan_of(answer)) == sorted(files))


def reason(answer: str, files: Collection[str]) -> str:
    plan = plan_of(answer)
    missing = sorted(set(files) - set(plan))
    false = [name for i, name in enumerate(plan) if name not in files or name in plan[:i]][:5]
    return f"missing: {', '.join(missing) or 'nothing'}; false: {', '.join(false) or 'nothing'}"
