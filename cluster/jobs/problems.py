"""Turns the problems of a job into the error of a failed job, with the codes of the API."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.preflight.limits import NUM_ROWS
from cluster.records.redact import plain
from cluster.stores.job_tables import JobError
from trainer.errors import InvalidJob, Problem, RftError, UserError
from trainer.spec.job import FILES

MAX_MESSAGE_CHARS = 2_000


def wire_error(problems: Sequence[Problem]) -> JobError:
    """The error of a job that has these problems: code and param of the first, and how many more there are.

    Other problems come before a wrong number of rows, which may be a consequence of them.
    """
    first = min(problems, key=lambda problem: problem.code == NUM_ROWS)
    code = first.code
    if first.field.startswith(FILES) and code != NUM_ROWS:
        code = f"invalid_{_file_of(first)}"
    param = _file_of(first) if first.field.startswith(FILES) else first.field
    rest = f" ({len(problems) - 1} more in the job's events)" if len(problems) > 1 else ""
    message = f"{describe(first)}{rest}"
    return JobError(code, message[:MAX_MESSAGE_CHARS], None if param.startswith("--") else param)


def describe(problem: Problem) -> str:
    """A problem as one line: `training_file, line 3: is not valid JSON: ...; write one JSON object per line`."""
    place = problem.field + ("" if problem.line is None else f", line {problem.line}")
    return str(plain(f"{place}: {problem.message}; {problem.remedy}"))


def error_of(error: RftError) -> JobError:
    """The error of a job that failed while it ran."""
    if isinstance(error, InvalidJob) and error.problems:
        return wire_error(error.problems)
    code = "user_error" if isinstance(error, UserError) else "training_failed"
    return JobError(code, str(plain(error.message))[:MAX_MESSAGE_CHARS])


def _file_of(problem: Problem) -> str:
    return next(name for name in FILES if problem.field.startswith(name))
