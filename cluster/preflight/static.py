"""The checks of a job that read files only: no model library is imported, no cluster started, no endpoint called.

While a job's form has mistakes, this is all that is checked, so that they are reported in a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from agent_rft.cluster.planning.model_folder import ModelFolder, context_of, context_problems, read_sizes
from agent_rft.cluster.preflight.form_check import early_stop_problems, endpoint_problems
from agent_rft.cluster.preflight.rows import JobRow, read_files, rows_of, size_problems, tool_problems, value_problems
from agent_rft.errors import InvalidJob, Problem
from agent_rft.rows.rows import ranges
from agent_rft.spec.job import FILES, JobSpec, Reinforcement
from agent_rft.spec.operator.config import Operator

SHOWN_PER_KIND = 10


def static_problems(job: JobSpec, folder: ModelFolder, operator: Operator) -> list[Problem]:
    """What is wrong with a job's data files, model folder, tools and graders."""
    files, problems = read_files(job)
    model, bad = read_sizes(folder)
    problems += bad
    if job.method.type == "reinforcement":
        problems += method_problems(job.reinforcement, rows_of(job, files), operator)
        problems += early_stop_problems(job)
    if model is not None:
        problems += context_problems(context_of(job, model.max_context), model.max_context)
    return problems


def method_problems(reinforcement: Reinforcement, rows: Sequence[JobRow], operator: Operator) -> list[Problem]:
    """What is wrong with tools, sessions and graders, by themselves and for these rows; nothing is called."""
    return [
        *tool_problems(reinforcement, rows),
        *size_problems(reinforcement, rows),
        *endpoint_problems(reinforcement, operator),
        *value_problems(reinforcement, rows),
    ]


def invalid_job(problems: Sequence[Problem]) -> InvalidJob:
    """The error that lists all problems of a job."""
    mistakes = _merged(problems)
    return InvalidJob(f"the job has {len(mistakes)} problem{'s' * (len(mistakes) != 1)}", _shortened(mistakes))


@dataclass(frozen=True, slots=True)
class _Mistake:
    """A problem, and the lines of all rows that have it."""

    problem: Problem
    lines: list[int]

    @property
    def of_its_rows(self) -> Problem:
        several = self.problem.field.startswith(FILES) and len(set(self.lines)) > 1
        return replace(self.problem, rows=ranges(self.lines)) if several else self.problem


def _merged(problems: Iterable[Problem]) -> list[_Mistake]:
    """The problems, where the same problem of many rows is one, since it has one cause."""
    merged: dict[tuple[str, ...] | int, _Mistake] = {}
    for number, problem in enumerate(problems):
        of_row = problem.line is not None and problem.field.startswith(FILES)
        same = (problem.code, _without_indexes(problem.field), problem.message) if of_row else number
        merged.setdefault(same, _Mistake(problem, [])).lines.extend([problem.line] if problem.line is not None else [])
    return list(merged.values())


def _shortened(mistakes: Iterable[_Mistake]) -> list[Problem]:
    """At most SHOWN_PER_KIND problems of one code and field, followed by one that counts the others."""
    kinds: dict[tuple[str, str], list[_Mistake]] = {}
    shown: list[Problem] = []
    for mistake in mistakes:
        kind = kinds.setdefault((mistake.problem.code, _without_indexes(mistake.problem.field)), [])
        kind.append(mistake)
        if len(kind) <= SHOWN_PER_KIND:
            shown.append(mistake.of_its_rows)
    for (_, where), kind in kinds.items():
        if others := kind[SHOWN_PER_KIND:]:
            lines = [line for mistake in others for line in mistake.lines]
            message = f"and {len(others)} more of this kind"
            rest = replace(others[0].problem, field=where, message=message, remedy="fix them likewise")
            shown.append(_Mistake(rest, lines).of_its_rows)
    return shown


def _without_indexes(field: str) -> str:
    return re.sub(r"\d+", "", field)


def check_gradable(job: JobSpec, file: str) -> None:
    """Check that a job has a grader, and this file to grade.

    Raises:
        InvalidJob: It has not.
    """
    if job.method.type == "supervised":
        message, remedy = "a supervised job has no grader", "use a job whose method is reinforcement"
        raise InvalidJob("nothing to grade", [Problem("not_gradable", "method.type", message, remedy)])
    if getattr(job, file) is None:
        remedy = "use training_file, validation_file or test_file, and set it in the job"
        raise InvalidJob("nothing to grade", [Problem("missing_file", "--file", f"the job has no {file!r}", remedy)])
