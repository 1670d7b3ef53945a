"""Job files: YAML or JSON -> JobSpec, with every mistake named by its field and line."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.errors import InvalidJob, Problem
from trainer.spec.job import FILES, JobSpec
from trainer.spec.reader import KeyPath, ParsedFile, fill_in, read_source, validate

_TRUNCATED_SAMPLING = ("top_p", "top_k", "min_p")
_GRADER: KeyPath = ("method", "reinforcement", "grader")
_TOOLS: KeyPath = ("method", "reinforcement", "tools")
_STAND_IN_GRADER = {"type": "string_check", "input": "", "reference": "", "operation": "eq"}
_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_STAND_IN_URL = "http://stand-in.invalid"


def load_job(path: Path, environment: Mapping[str, str] = os.environ) -> JobSpec:
    """Read a job. `${NAME}` in any text stands for an environment variable, so that secrets stay out of the file.

    Raises:
        InvalidJob: with all problems of the file's form.
    """
    job, problems = read_job(path, environment)
    if problems or job is None:
        raise InvalidJob(f"{len(problems)} mistake{'s' * (len(problems) != 1)} in the job", problems)
    return job


def read_job(path: Path, environment: Mapping[str, str] = os.environ) -> tuple[JobSpec | None, list[Problem]]:
    """Like `load_job`, with the problems returned. Beside problems stands what is left of the job without its mistakes
    (None where that is too little): to check its files and its model in one go, never to train it.
    """
    source = read_source(path, "job")
    if isinstance(source, Problem):
        return None, [source]
    job, problems = _parse(source, path.parent, environment)
    return job, source.duplicates() + problems


def placed(path: Path, problems: Sequence[Problem]) -> list[Problem]:
    """The same problems; those that name a field of the job and no place stand at its line in the job's file."""
    source = read_source(path, "job")
    if isinstance(source, Problem):
        return list(problems)
    lines = {problem.field: source.lines.of(_place(problem.field)) for problem in problems if problem.file is None}
    return [
        replace(problem, file=source.file, line=lines[problem.field]) if lines.get(problem.field) else problem
        for problem in problems
    ]


def _place(field: str) -> KeyPath:
    return tuple(int(index) if index else key for index, key in _PART.findall(field))


def _parse(source: ParsedFile, base: Path, environment: Mapping[str, str]) -> tuple[JobSpec | None, list[Problem]]:
    if not isinstance(source.raw, dict):
        shape = "is no mapping of keys to values"
        return None, [Problem("job_shape", "job", shape, "start with `model: ...`", source.file)]
    raw, variables, problems = fill_in(source, environment)
    for name in FILES:
        if isinstance(raw.get(name), str):
            raw[name] = str((base / raw[name]).resolve())
    if isinstance(raw.get("model"), str) and (base / raw["model"]).is_dir():
        raw["model"] = str((base / raw["model"]).resolve())
    job, found = validate(JobSpec, raw, source, variables, _truncated_sampling)
    problems += [problem for _, problem in found]
    wrong = [place for place, _ in variables.missing] + [place for place, _ in found]
    return (_rest(raw, wrong) if problems else job), problems


def _truncated_sampling(place: KeyPath) -> tuple[str, str, str] | None:
    if not place or place[-1] not in _TRUNCATED_SAMPLING:
        return None
    remedy = "remove it: training samples the whole distribution (top_p 1, top_k off), else log-probabilities are wrong"
    return "truncated_sampling", "is refused in training", remedy


def _rest(raw: Any, wrong: Sequence[KeyPath]) -> JobSpec | None:
    """What is left of a job without what stands at `wrong`. A grader and a tool's server must not be missing: stand-ins
    take their places, so that nothing else looks wrong for want of them.
    """
    rest: Any = copy.deepcopy(raw)
    method = rest.get("method")
    reinforcement: Any = method.get("reinforcement") if isinstance(method, dict) else None
    for place in sorted(wrong, key=len, reverse=True):
        if place[:3] == _GRADER:
            reinforcement["grader"] = _STAND_IN_GRADER
        elif place[:3] == _TOOLS and len(place) > 3:
            tool, i = reinforcement["tools"][place[3]], place[3]
            name = tool.get("name") if isinstance(tool, dict) else None
            reinforcement["tools"][i] = {"name": str(name or f"stand-in-{i}"), "server_url": _STAND_IN_URL}
        elif place == _TOOLS and isinstance(reinforcement["tools"], list):  # names that stand twice
            reinforcement["tools"] = list({tool["name"]: tool for tool in reinforcement["tools"]}.values())
        else:
            _remove(rest, place)
    try:
        return JobSpec.model_validate(rest)
    except ValidationError:
        return None


def _remove(value: Any, place: KeyPath) -> None:
    for part in place[:-1]:
        value = value[part]
    if place and isinstance(value, dict):
        value.pop(place[-1], None)
