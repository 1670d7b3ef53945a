"""The types of entries of the registry of problem codes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProblemCode:
    """What a code means, more than the message of a single problem can say, and what to do about it.

    `meaning` also says why there is such a check, where that is not obvious. Both are sentences in Markdown.
    """

    meaning: str
    remedy: str


@dataclass(frozen=True, slots=True)
class CheckCode(ProblemCode):
    """A code of the check of a job.

    `stops_accepted`: it also stops a job that was accepted before, such as a run that is resumed, because that cannot
    continue: something is gone, or is forbidden or impossible today. False for what concerns only the job's values: a
    check that is newer than the job must not end it, so the job gets a warning.
    """

    stops_accepted: bool
