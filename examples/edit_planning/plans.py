"""How a plan is graded. It is a list of files, one a line, as git writes their paths, each once.

Files that a change adds are not asked for: nothing in the checkout tells their names.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

MOST: Final = 2.0
"""The grade of a plan with more than this many times the files of the change is 0."""


def plan_of(answer: str) -> list[str]:
    return [line.strip() for line in answer.split("\n") if line.strip()]


def f1(answer: str, files: Collection[str]) -> float:
    """What trains: the harmonic mean of precision and recall. A line that names a file again is a false one."""
    plan = plan_of(answer)
    if len(plan) > MOST * len(files):
        return 0.0
    right = len(set(plan) & set(files))
    return 2 * right / (len(plan) + len(files))


def exact(answer: str, files: Collection[str]) -> float:
    """What is held out: 1 for the files of the change and nothing else, 0 otherwise."""
    return float(sorted(plan_of(answer)) == sorted(files))


def reason(answer: str, files: Collection[str]) -> str:
    plan = plan_of(answer)
    missing = sorted(set(files) - set(plan))
    false = [name for i, name in enumerate(plan) if name not in files or name in plan[:i]][:5]
    return f"missing: {', '.join(missing) or 'nothing'}; false: {', '.join(false) or 'nothing'}"
