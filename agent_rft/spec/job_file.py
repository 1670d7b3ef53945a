"""Reader of job files in YAML or JSON, which reports every error with its field and line."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os.path import expanduser  # Path.expanduser raises if there is no home folder
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.config_reader import (
    KeyPath,
    ParsedFile,
    Variables,
    drop_missing_variable_problems,
    read_source,
    substitute_variables,
    validate,
)
from agent_rft.spec.job import FILES, JobSpec
from agent_rft.spec.legacy_job import BOUND_ERRORS, UNKNOWN, has_value, load_without_bounds, removed_setting_warning
from agent_rft.spec.model_options import read_template

_TRUNCATED_SAMPLING = ("top_p", "top_k", "min_p")
_GRADER: KeyPath = ("method", "reinforcement", "grader")
_TOOLS: KeyPath = ("method", "reinforcement", "tools")
_OPTIONAL_SECTIONS = [("method", "reinforcement", name) for name in ("session", "guards", "held_out_grader")]
_DUMMY_GRADER = {"type": "string_check", "input": "", "reference": "", "operation": "eq"}
_DUMMY_URL = "http://dummy.invalid"
TEMPLATE: KeyPath = ("model_options", "chat_template")
TEMPLATE_HINT = "give the path of a Jinja file of at most 64 kB, relative to the job file"
_BOUNDS, _UNKNOWN = {f"invalid_{kind}" for kind in BOUND_ERRORS}, f"invalid_{UNKNOWN}"
_KEY_OR_INDEX = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def load_job(path: Path, environment: Mapping[str, str] = os.environ) -> JobSpec:
    """Read a job file. `${NAME}` in any string is replaced by the environment variable NAME.

    The file itself therefore needs no secrets.

    Raises:
        InvalidJob: The file has errors; the exception lists all of them.
    """
    job, problems = read_job(path, environment)
    if problems or job is None:
        raise InvalidJob(f"{len(problems)} error{'s' * (len(problems) != 1)} in the job", problems)
    return job


def read_job(path: Path, environment: Mapping[str, str] = os.environ) -> tuple[JobSpec | None, list[Problem]]:
    """Read a job like `load_job`, but return the problems instead of raising them.

    If there are problems, the returned job lacks the invalid parts; it is None if too little remains. Such a job must
    not be trained. It is returned so that the check can examine the job's files and model in the same pass.
    """
    source = read_source(path, "job")
    if isinstance(source, Problem):
        return None, [source]
    job, problems = _parse(source, path.parent, environment)
    return job, source.find_duplicates() + problems


def load_accepted_job(
    path: Path, recorded: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> tuple[JobSpec, list[str]]:
    """Read the job file of a resumed run like `load_job`, but allow outdated settings; return (job, warnings).

    A value outside the current bounds is kept, with a warning. A setting that no longer exists is removed, with a
    warning, if `recorded` contains the setting. `recorded` is the job in the run folder.

    Raises:
        InvalidJob: The file has any other error, such as an unknown setting that `recorded` does not contain.
    """
    source = read_source(path, "job")
    if isinstance(source, ParsedFile) and isinstance(source.raw, dict):
        raw, variables, problems = _fill_in_source(source, path.parent, environment)
        _, found = validate(JobSpec, raw, source, variables, _truncated_sampling_problem)
        kept = [(at, problem) for at, problem in found if problem.code in _BOUNDS]
        dropped = [(at, problem) for at, problem in found if problem.code == _UNKNOWN and has_value(recorded, at)]
        if found and len(kept) + len(dropped) == len(found) and not problems and not source.find_duplicates():
            keeps = "the run continues with the value in the job file"
            warnings = [f"{problem.field}: {problem.message}; {keeps}" for _, problem in kept]
            warnings += [removed_setting_warning(problem.field, "the run") for _, problem in dropped]
            return load_without_bounds(raw, [at for at, _ in kept], [at for at, _ in dropped]), warnings
    return load_job(path, environment), []


def add_lines(path: Path, problems: Sequence[Problem]) -> list[Problem]:
    """Add the path of the job file and the line of the field to each problem, and return the problems.

    Problems that already name a file are not changed.
    """
    source = read_source(path, "job")
    if isinstance(source, Problem):
        return list(problems)
    return [
        replace(problem, file=source.file, line=line)
        if problem.file is None and (line := source.lines.find_line(_parse_key_path(problem.field)))
        else problem
        for problem in problems
    ]


def _parse_key_path(field: str) -> KeyPath:
    return tuple(int(index) if index else key for index, key in _KEY_OR_INDEX.findall(field))


def _parse(source: ParsedFile, base: Path, environment: Mapping[str, str]) -> tuple[JobSpec | None, list[Problem]]:
    if not isinstance(source.raw, dict):
        message, fix = "must be a mapping of keys to values", "write `key: value` lines, such as `model: org/model`"
        return None, [Problem("job_shape", "job", message, fix, source.file)]
    raw, variables, problems = _fill_in_source(source, base, environment)
    job, found = validate(JobSpec, raw, source, variables, _truncated_sampling_problem)
    problems += drop_missing_variable_problems(found, variables)
    invalid = [path for path, _ in variables.missing] + [path for path, _ in found]
    return (_drop_invalid(raw, invalid) if problems else job), problems


def _fill_in_source(
    source: ParsedFile, base: Path, environment: Mapping[str, str]
) -> tuple[dict[str, Any], Variables, list[Problem]]:
    """Fill in variables, absolute paths and the chat template; return (job data, variables of the file, problems)."""
    raw, variables, problems = substitute_variables(source, environment)
    for name in FILES:
        if isinstance(raw.get(name), str):
            raw[name] = str((base / expanduser(raw[name])).resolve())
    if isinstance(raw.get("model"), str):
        raw["model"] = expanduser(raw["model"])
        if (base / raw["model"]).is_dir():
            # Symbolic links are not resolved: a checkpoint's path contains one that outlives the process that wrote it.
            raw["model"] = os.path.abspath(base / raw["model"])
    match raw.get("model_options"):
        case {"chat_template": str(template)} as options:
            try:
                options["chat_template"] = read_template((base / expanduser(template)).resolve())
            except ValueError as error:
                del options["chat_template"]
                problems.append(source.problem("unreadable_template", TEMPLATE, str(error), TEMPLATE_HINT))
    return raw, variables, problems


def _truncated_sampling_problem(path: KeyPath) -> tuple[str, str, str] | None:
    if not path or path[-1] not in _TRUNCATED_SAMPLING:
        return None
    code = "truncated_sampling"
    fix = "remove it: the learner cannot reproduce the log-probabilities of a truncated distribution"
    return code, "is not supported in training", fix


def _drop_invalid(raw: Any, invalid: Sequence[KeyPath]) -> JobSpec | None:
    """Return the job without its invalid parts; None if the rest is not a valid job.

    An invalid grader and invalid tools are replaced by dummies, because a missing grader or tool would be reported as
    another problem. An invalid session, guard list or held-out grader is removed completely. The job is valid without
    these sections, but not with incomplete sections.
    """
    rest: Any = copy.deepcopy(raw)
    method = rest.get("method")
    reinforcement: Any = method.get("reinforcement") if isinstance(method, dict) else None
    for path in sorted(invalid, key=len, reverse=True):
        if path[:3] == _GRADER:
            reinforcement["grader"] = _DUMMY_GRADER
        elif path[:3] == _TOOLS and len(path) > 3:
            tool, i = reinforcement["tools"][path[3]], path[3]
            name = tool.get("name") if isinstance(tool, dict) else None
            reinforcement["tools"][i] = {"name": str(name or f"dummy-{i}"), "server_url": _DUMMY_URL}
        elif path == _TOOLS and isinstance(reinforcement["tools"], list):  # duplicated names
            reinforcement["tools"] = list({tool["name"]: tool for tool in reinforcement["tools"]}.values())
        else:
            _remove(rest, path[:3] if path[:3] in _OPTIONAL_SECTIONS else path)
    try:
        return JobSpec.model_validate(rest)
    except ValidationError:
        return None


def _remove(value: Any, path: KeyPath) -> None:
    for part in path[:-1]:
        value = value[part]
    if path and isinstance(value, dict):
        value.pop(path[-1], None)
