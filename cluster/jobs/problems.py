"""Turns the problems of a job into the error of a failed job, with the codes of the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.preflight.form_check import FILES
from cluster.records.redact import plain
from cluster.stores.job_tables import JobError
from trainer.errors import InvalidJob, Problem, RftError, UserError
from trainer.spec.operator import JobLimits

NUM_ROWS = "invalid_n_examples"
MAX_MESSAGE_CHARS = 2_000


def row_problems(limits: JobLimits, training: Path, validation: Path | None) -> list[Problem]:
    """Files with too few or too many rows."""
    found = []
    count = _count_rows(training)
    if not limits.min_training_rows <= count <= limits.max_training_rows:
        wanted = f"{limits.min_training_rows:,} to {limits.max_training_rows:,}"
        found.append(_problem("training_file", count, wanted, training))
    if validation is not None and (count := _count_rows(validation)) > limits.max_validation_rows:
        found.append(_problem("validation_file", count, f"at most {limits.max_validation_rows:,}", validation))
    return found


def resource_problems(limits: JobLimits, bundles: Sequence[Mapping[str, float]]) -> list[Problem]:
    """What the operator lets no job take. `bundles` are the job's, as Ray names resources."""
    found = []
    for kind, name, most in (("CPU", "cores", limits.max_cores), ("GPU", "GPUs", limits.max_gpus)):
        wanted = sum(bundle.get(kind, 0.0) for bundle in bundles)
        if most is not None and wanted > most:
            message = f"the job wants {wanted:g} {name}, but the operator lets a job take {most}"
            remedy = "lower engines, learner_ranks or what each of them takes, or ask for a higher jobs.max_" + (
                "cores" if kind == "CPU" else "gpus"
            )
            found.append(Problem("over_limit", "cluster", message, remedy))
    return found


def _problem(field: str, count: int, wanted: str, path: Path) -> Problem:
    message = f"holds {count:,} row{'s' * (count != 1)}, but a job takes {wanted}"
    return Problem(NUM_ROWS, field, message, "add or remove rows", path.name)


def _count_rows(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return sum(1 for line in file if line.strip())
    except OSError:
        return 0  # the preflight says so in better words


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
