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

    `stops_accepted_jobs` applies to a job that an earlier check accepted, such as a resumed run.

    - True: the problem stops the job, because something is missing, forbidden or impossible.
    - False: the job gets a warning and continues. The problem only concerns values in the job. The check may have been
      added after the job started, and must not end such a job.

    With `is_warning`, the problem never stops a job.
    """

    stops_accepted_jobs: bool
    is_warning: bool = False
