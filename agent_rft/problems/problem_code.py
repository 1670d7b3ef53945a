"""Entry types of the registry of problem codes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProblemCode:
    """Explanation of a problem code: its general meaning and what to do about it, as sentences in Markdown.

    `meaning` includes the reason for the check if it is not obvious.
    """

    meaning: str
    fix: str


@dataclass(frozen=True, slots=True)
class CheckCode(ProblemCode):
    """A code of the check of a job.

    `stops_accepted`: True if it also stops a job that was accepted before, such as a resumed run, because the job
    cannot continue: something is missing, forbidden or impossible. False if it only concerns values of the job: a check
    that was added after the job started must not end it, so the job gets a warning.
    """

    stops_accepted: bool
