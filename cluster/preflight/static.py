"""The checks of a job that read files only: no model library is imported, no cluster started, no endpoint called.

While a job's form has mistakes, this is all that is checked, so that they are reported in a second.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cluster.planning.context import context_of, context_problems
from cluster.planning.model_folder import read_folder
from cluster.preflight.form_check import endpoint_problems
from cluster.preflight.rows import JobRow, read_files, rows_of, tool_problems, value_problems
from trainer.errors import InvalidJob, Problem
from trainer.spec.job import FILES, JobSpec, Reinforcement
from trainer.spec.operator import Operator

SHOWN_PER_KIND = 10


def static_problems(job: JobSpec, operator: Operator) -> list[Problem]:
    """What is wrong with a job's data files, model folder, tools and graders."""
    files, problems = read_files(job)
    model, bad = read_folder(job.model)
    problems += bad
    if job.method.type == "reinforcement":
        problems += method_problems(job.reinforcement, rows_of(job, files), operator)
    if model is not None:
        problems += context_problems(context_of(job, model.max_context), model.max_context)
    return problems


def method_problems(reinforcement: Reinforcement, rows: Sequence[JobRow], operator: Operator) -> list[Problem]:
    """What is wrong with tools, sessions and graders, by themselves and for these rows; nothing is called."""
    return [
        *tool_problems(reinforcement, rows),
        *endpoint_problems(reinforcement, operator),
        *value_problems(reinforcement, rows),
    ]


def invalid_job(problems: Sequence[Problem]) -> InvalidJob:
    """The error that lists all problems of a job."""
    problems = _merged(problems)
    return InvalidJob(f"the job has {len(problems)} problem{'s' * (len(problems) != 1)}", _shortened(problems))


def _merged(problems: Iterable[Problem]) -> list[Problem]:
    """The problems, where the same problem of many rows is one that counts them: it has one cause."""
    first: dict[tuple[str, str, str], Problem] = {}
    rows: Counter[tuple[str, str, str]] = Counter()
    merged = []
    for problem in problems:
        key = (problem.code, _without_indexes(problem.field), problem.message)
        if not problem.field.startswith(FILES) or first.setdefault(key, problem) is problem:
            merged.append(problem)
        else:
            rows[key] += 1
    more = {id(first[key]): f"{first[key].message} (and {count} more rows like this)" for key, count in rows.items()}
    return [replace(problem, message=more.get(id(problem), problem.message)) for problem in merged]


def _shortened(problems: Iterable[Problem]) -> list[Problem]:
    """At most SHOWN_PER_KIND problems of one code and field, followed by one that counts the others."""
    shown: list[Problem] = []
    counts: Counter[tuple[str, str]] = Counter()
    for problem in problems:
        key = (problem.code, _without_indexes(problem.field))
        counts[key] += 1
        if counts[key] <= SHOWN_PER_KIND:
            shown.append(problem)
    for (code, where), count in counts.items():
        if count > SHOWN_PER_KIND:
            shown.append(Problem(code, where, f"and {count - SHOWN_PER_KIND} more of this kind", "fix them likewise"))
    return shown


def _without_indexes(field: str) -> str:
    return re.sub(r"\d+", "", field)
