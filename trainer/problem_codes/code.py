"""The type of an entry of the registry of problem codes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProblemCode:
    """What a code means, more than the message of a single problem can say, and what to do about it.

    `meaning` also says why there is such a check, where that is not obvious. Both are sentences in Markdown.
    """

    meaning: str
    remedy: str
