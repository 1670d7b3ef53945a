"""Offline checks of a job: they only read files, import no model library, start no cluster and call no endpoint.

If the job file itself has errors, no other checks run, so that its errors are reported within a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from agent_rft.cluster.checks.endpoint_checks import check_early_stop, check_endpoints
from agent_rft.cluster.checks.row_checks import (
    CheckedRow,
    check_conversations,
    check_row_sizes,
    check_template_values,
    check_tools,
    list_rows,
    read_files,
)
from agent_rft.cluster.planning.model_folder import ModelFolder, context_problems, read_sizes, resolve_context
from agent_rft.errors import InvalidJob, Problem
from agent_rft.problems import is_warning
from agent_rft.rows.dataset_rows import format_ranges
from agent_rft.spec.job import FILES, JobSpec, Reinforcement
from agent_rft.spec.operator.operator_config import OperatorConfig

SHOWN_PER_KIND = 10


def check_offline(job: JobSpec, folder: ModelFolder, operator: OperatorConfig) -> list[Problem]:
    """Return the problems of a job's data files, model folder, tools and graders, without warnings."""
    files, problems = read_files(job)
    model, bad = read_sizes(folder)
    problems += bad
    if job.method.type == "reinforcement":
        problems += check_method(job.reinforcement, list_rows(job, files), operator)
        problems += check_early_stop(job)
    else:
        problems += check_conversations(list_rows(job, files))
    if model is not None:
        problems += context_problems(resolve_context(job, model.max_context), model.max_context)
    return [problem for problem in problems if not is_warning(problem.code)]


def check_method(reinforcement: Reinforcement, rows: Sequence[CheckedRow], operator: OperatorConfig) -> list[Problem]:
    """Return problems of a job's tools, session and graders, and of rows that do not fit them. Calls no endpoint."""
    return [
        *check_tools(reinforcement, rows),
        *check_row_sizes(reinforcement, rows),
        *check_endpoints(reinforcement, operator),
        *check_template_values(reinforcement, rows),
    ]


def make_invalid_job(problems: Sequence[Problem]) -> InvalidJob:
    """Return the error that lists all problems of a job."""
    merged = _merge_equal_problems(problems)
    return InvalidJob(f"the job has {len(merged)} problem{'s' * (len(merged) != 1)}", _limit_per_kind(merged))


@dataclass(frozen=True, slots=True)
class _MergedProblem:
    """Problem of one or more rows, with their line numbers."""

    problem: Problem
    lines: list[int]

    @property
    def with_rows(self) -> Problem:
        several = self.problem.field.startswith(FILES) and len(set(self.lines)) > 1
        return replace(self.problem, rows=format_ranges(self.lines)) if several else self.problem


def _merge_equal_problems(problems: Iterable[Problem]) -> list[_MergedProblem]:
    """Merge problems that differ only in their rows."""
    merged: dict[tuple[str, ...] | int, _MergedProblem] = {}
    for number, problem in enumerate(problems):
        of_row = problem.line is not None and problem.field.startswith(FILES)
        same = (problem.code, _without_indexes(problem.field), problem.message) if of_row else number
        merged.setdefault(same, _MergedProblem(problem, [])).lines.extend(
            [problem.line] if problem.line is not None else []
        )
    return list(merged.values())


def _limit_per_kind(merged: Iterable[_MergedProblem]) -> list[Problem]:
    """Return the first SHOWN_PER_KIND problems per code and field, then one problem that counts the remaining ones."""
    kinds: dict[tuple[str, str], list[_MergedProblem]] = {}
    shown: list[Problem] = []
    for each in merged:
        kind = kinds.setdefault((each.problem.code, _without_indexes(each.problem.field)), [])
        kind.append(each)
        if len(kind) <= SHOWN_PER_KIND:
            shown.append(each.with_rows)
    for (_, where), kind in kinds.items():
        if others := kind[SHOWN_PER_KIND:]:
            lines = [line for each in others for line in each.lines]
            message = f"and {len(others)} more of this kind"
            fix = "fix them in the same way as the first problems of this kind"
            rest = replace(others[0].problem, field=where, message=message, fix=fix)
            shown.append(_MergedProblem(rest, lines).with_rows)
    return shown


def _without_indexes(field: str) -> str:
    return re.sub(r"\d+", "", field)


def check_gradable(job: JobSpec, file: str) -> None:
    """Check that the rows of a job's file can be graded; `file` is the field of the job, such as `test_file`.

    Raises:
        InvalidJob: The job is supervised, or does not set the field `file`.
    """
    if job.method.type == "supervised":
        message, fix = "a supervised job has no grader", "use a job whose method is reinforcement"
        raise InvalidJob("nothing to grade", [Problem("not_gradable", "method.type", message, fix)])
    if getattr(job, file) is None:
        fix = f"set {file} in the job, or choose another file: training_file, validation_file or test_file"
        raise InvalidJob("nothing to grade", [Problem("missing_file", "--file", f"the job has no {file!r}", fix)])
