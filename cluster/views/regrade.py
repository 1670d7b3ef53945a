"""Regrading: runs a grader on recorded rollouts, once or repeatedly, without training and without an engine.

Repeated runs show how much the grades vary.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import zstandard
from pydantic import RootModel

from agent_rft.actors.graders.grader_protocol import UNGATED
from agent_rft.actors.graders.grader_sample import make_sample
from agent_rft.actors.grading.grader_factory import all_grader_problems
from agent_rft.actors.grading.grader_pool import GraderPool
from agent_rft.actors.runtime.actor_calls import return_errors
from agent_rft.cluster.checks.local_endpoints import allow_local_endpoints
from agent_rft.cluster.records.run_folder import RunFolder, open_run
from agent_rft.errors import InvalidJob, Problem, RftError, UserError, first_error
from agent_rft.rows.rollout_files import ROLLOUTS_SUFFIX, read_groups
from agent_rft.spec.config_reader import (
    KeyPath,
    drop_missing_variable_problems,
    read_source,
    substitute_variables,
    validate,
)
from agent_rft.spec.graders import GraderSpec
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.job_file import load_job
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.types import Grade, Group

MAX_CONCURRENT = 256
SHOWN_PROBLEMS = 20
_SECTION = "method.reinforcement."
_LINE_FIX = (
    'give one JSON object per line: {"sample": {...} or the answer\'s text, "item": {...}}, and optionally "grade"'
)

GradingOutcome = Grade | RftError


@dataclass(frozen=True, slots=True)
class GradingCase:
    """One rollout to grade.

    `recorded_grade` is the grade that the run or the JSONL line contains, if any. `row_id` is empty for a line of a
    JSONL file of samples. `where` is the file and line number of the row.
    """

    sample: dict[str, Any]
    item: dict[str, Any]
    trace_id: str
    recorded_grade: float | None = None
    row_id: str = ""
    where: str = ""

    def for_run(self, number: int) -> GradingCase:
        """Return the case for run `number`. A new trace id prevents the use of answers that an earlier run cached."""
        return replace(self, trace_id=f"{self.trace_id}_again_{number}") if number else self


class _BareGrader(RootModel[GraderSpec]):
    """File that contains only a grader, without guards."""


async def grade_file(
    file: Path,
    grader: Path,
    operator: OperatorConfig,
    *,
    name: str | None = None,
    repeat: int = 1,
    own_endpoints: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Reinforcement, list[GradingCase], list[list[GradingOutcome]]]:
    """Run the grader in the file `grader` on all rollouts of `file`, `repeat` times.

    If `own_endpoints` is true, graders may call local endpoints; see `allow_local_endpoints`. After each grade,
    `on_progress` is called with the number of grades so far and the total.

    Returns:
        The contents of the grader file, the rollouts, and the outcomes `[run][rollout]`.

    Raises:
        InvalidJob: The file or the grader is invalid.
        UserError: An endpoint answered 401 or 403, or this host has no sandbox for a python grader.
    """
    reinforcement = read_grader(grader, operator)
    if own_endpoints:
        operator = allow_local_endpoints(operator, reinforcement, None)
    cases = read_cases(file, name)
    runs = []
    for number in range(repeat):
        so_far = number * len(cases)

        def progress(count: int, so_far: int = so_far) -> None:
            on_progress(so_far + count, repeat * len(cases))

        again = [case.for_run(number) for case in cases]  # with a new pool, which has no cached answers either
        runs.append(await grade_cases(again, GraderPool.for_job(reinforcement, operator), progress))
    return reinforcement, cases, runs


async def grade_cases(
    cases: Sequence[GradingCase], pool: GraderPool, progress: Callable[[int], None]
) -> list[GradingOutcome]:
    """Grade the cases, close the pool, and return the outcomes in order.

    `progress` is called with the number of cases graded so far.
    """
    slots, count = asyncio.Semaphore(MAX_CONCURRENT), 0

    async def grade_one(case: GradingCase) -> GradingOutcome:
        nonlocal count
        async with slots:
            outcome = await return_errors(pool.grade(case.sample, case.item, case.trace_id))
        if isinstance(outcome, UserError):
            raise outcome
        progress(count := count + 1)
        return outcome

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(grade_one(case)) for case in cases]
    except ExceptionGroup as errors:
        raise first_error(errors) from None
    finally:
        await pool.close()
    return [task.result() for task in tasks]


# -- what to grade -----------------------------------------------------------------------------------------------------


def read_cases(path: Path, name: str | None = None) -> list[GradingCase]:
    """Read the rollouts to grade from a run folder, a rollout file or a JSONL file.

    `name` selects a rollout file of the run folder; None selects the newest one.

    Raises:
        UserError: The run folder or rollout file has no rollouts to grade, or cannot be read.
        InvalidJob: A JSONL file is empty, cannot be read, or has invalid lines, which the error lists.
    """
    if path.is_dir():
        run = open_run(path)
        names = run.rollout_names()
        if not names or (name is not None and name not in names):
            missing = "rollouts" if name is None else f"rollouts named {name!r}"
            raise UserError(f"{path} has no {missing}; available: {', '.join(sorted(names)) or 'none'}")
        path = path / "rollouts" / ((name or names[-1]) + ROLLOUTS_SUFFIX)
    if path.name.endswith(ROLLOUTS_SUFFIX) and path.is_file():
        return _read_recorded_cases(path)
    cases, problems = [], []
    for number, outcome in enumerate(_parse_lines(path), start=1):
        if isinstance(outcome, GradingCase):
            cases.append(outcome)
        elif outcome is not None:
            problems.append(Problem("invalid_line", "line", outcome, _LINE_FIX, str(path), number))
    if problems:
        raise InvalidJob(f"{path} has {len(problems)} invalid line(s)", problems[:SHOWN_PROBLEMS])
    if not cases:
        raise InvalidJob(f"{path} contains no rollouts")
    return cases


def _read_recorded_cases(path: Path) -> list[GradingCase]:
    """Read the graded rollouts of a run's rollout file. Discarded rollouts are skipped, because they have no answer."""
    try:
        groups, job = read_groups(path), RunFolder(path.parent.parent).job()
    except (zstandard.ZstdError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    reinforcement = job.get("job", {}).get("method", {}).get("reinforcement") or {}
    data_file = _data_file(job, path.name, groups[0]) if groups else ""
    cases = make_cases(groups, reinforcement.get("response_format") is not None, data_file)
    if not cases:
        raise UserError(f"{path} has no rollouts with an answer to grade")
    return cases


def make_cases(groups: Sequence[Group], wants_json: bool, data_file: str = "") -> list[GradingCase]:
    """Return a case for each rollout in `groups`. Set `wants_json` if the job has a response format."""
    return [
        GradingCase(
            make_sample(rollout.answer, rollout.turns, rollout.finish, wants_json),
            group.request.task.item,
            rollout.trace_id,
            rollout.grade.scores.get(UNGATED, rollout.grade.value),
            rollout.row_id,
            f"{data_file}:{rollout.row_id.partition('-')[0]}",
        )
        for group in groups
        for rollout in group.rollouts
    ]


def _data_file(job: Mapping[str, Any], name: str, group: Group) -> str:
    """Return the rows' data file, derived from a rollout name such as `eval-training`, or from the group's purpose."""
    purpose = "training" if group.request.purpose == "train" else group.request.purpose
    kind = name.removeprefix("eval-").partition(".")[0] if name.startswith("eval-") else purpose
    return str(job.get("job", {}).get(f"{kind}_file") or f"{kind}_file")


def _parse_lines(path: Path) -> Iterator[GradingCase | str | None]:
    """Yield the case or the error message of each line; None for an empty line."""
    try:
        texts = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not valid UTF-8"
        fix = "give a run folder, or a JSONL file of {sample, item}"
        raise InvalidJob("nothing to grade", [Problem("unreadable_file", str(path), str(why), fix)]) from None
    yield from (_parse_case(text, path, number) if text.strip() else None for number, text in enumerate(texts, 1))


def _parse_case(text: str, path: Path, number: int) -> GradingCase | str:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"is not valid JSON: {error}"
    if not isinstance(line, dict):
        return "is not a JSON object"
    sample, item = line.get("sample"), line.get("item", {})
    if isinstance(sample, str):
        sample = make_sample(sample, (), "answer", wants_json=True)
    if not isinstance(sample, dict):
        return "`sample` must be an object or the answer's text"
    if not isinstance(item, dict):
        return "`item` must be an object"
    grade = line.get("grade")
    if not (grade is None or (type(grade) in (int, float) and math.isfinite(grade))):
        return "`grade`, the expected grade, must be a number"
    return GradingCase(sample, item, str(line.get("trace_id") or f"trace_line_{number}"), grade, "", f"{path}:{number}")


# -- the grader --------------------------------------------------------------------------------------------------------


def read_grader(path: Path, operator: OperatorConfig, environment: Mapping[str, str] = os.environ) -> Reinforcement:
    """Read a grader from a file that contains a grader, the settings of `method.reinforcement`, or a full job.

    Raises:
        InvalidJob: The grader or the job is invalid; the error lists all problems.
        UserError: The job is supervised, so it has no grader.
    """
    source = read_source(path, "grader")
    if isinstance(source, Problem):
        raise InvalidJob("the grader cannot be used", [source])
    if not isinstance(source.raw, dict):
        raise InvalidJob(
            "the grader cannot be used", [source.problem("grader_shape", (), "must be an object", "add `type`")]
        )
    raw, variables, problems = substitute_variables(source, environment)
    reinforcement: Reinforcement | None = None
    found: list[tuple[KeyPath, Problem]] = []
    if "method" in raw:
        reinforcement = load_job(path, environment).method.reinforcement
        if reinforcement is None:
            raise UserError(f"{path} is a supervised job and has no grader. Give a reinforcement job or a grader.")
    elif "grader" in raw:
        reinforcement, found = validate(Reinforcement, raw, source, variables)
    else:
        bare, found = validate(_BareGrader, raw, source, variables)
        reinforcement = None if bare is None else Reinforcement(grader=bare.root)
    problems = source.find_duplicates() + problems + drop_missing_variable_problems(found, variables)
    if reinforcement is not None and not problems:
        problems = [
            replace(problem, field=problem.field.removeprefix(_SECTION), file=str(path))
            for problem in all_grader_problems(reinforcement, operator)
        ]
    if problems or reinforcement is None:
        raise InvalidJob(f"the grader has {len(problems)} problem{'s' * (len(problems) != 1)}", problems)
    return reinforcement
