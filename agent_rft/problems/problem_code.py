"""Types of the entries in the registry of problem codes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProblemCode:
    """Explanation of a problem code: its general meaning and what to do about it, as sentences in Markdown.

    `meaning` includes the reason for the check if the reason is not obvious.
    """

    meaning: str
    fix: str


@dataclass(frozen=True, slots=True)
class CheckCode(ProblemCode):
    """Explanation of a problem code of the job check.

    Attributes:
        stops_accepted_jobs: Whether the problem stops a job that an earlier check accepted, such as a resumed run. True
            if something is missing, forbidden or impossible. False if only values in the job are wrong. The job then
            gets only a warning, because the job may be older than the check.
        is_warning: Whether the problem is only a warning, which never stops a job.
    """

    stops_accepted_jobs: bool
    is_warning: bool = False
