"""Job files: YAML or JSON -> JobSpec, with every mistake named by its field."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from trainer.errors import InvalidJob, Problem
from trainer.spec import JobSpec

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PATHS = ("training_file", "validation_file", "test_file")
_TRUNCATED_SAMPLING = ("top_p", "top_k", "min_p")


def load_job(path: Path, environment: Mapping[str, str] = os.environ) -> JobSpec:
    """Read a job. `${NAME}` in any text stands for an environment variable, so that secrets stay out of the file.

    Raises:
        InvalidJob: with all problems of the file's form.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem(
            "unreadable_job", "job", str(error), "give the path of a readable YAML or JSON file", str(path)
        )
        raise InvalidJob(f"cannot read {path}", [problem]) from error
    try:
        raw = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else getattr(error, "lineno", None)
        problem = Problem("job_syntax", "job", str(error).replace("\n", " "), "mend the syntax", str(path), line)
        raise InvalidJob(f"{path} cannot be parsed", [problem]) from error
    return parse_job(raw, path.parent, environment, str(path))


def parse_job(raw: Any, base: Path, environment: Mapping[str, str] = os.environ, file: str | None = None) -> JobSpec:
    """Validate a job that was parsed already; relative paths count from `base`."""
    if not isinstance(raw, dict):
        problem = Problem("job_shape", "job", "is no mapping of keys to values", "start with `model: ...`", file)
        raise InvalidJob("the job has the wrong shape", [problem])
    problems: list[Problem] = []
    raw = _substitute(raw, environment, "", problems, file)
    for name in _PATHS:
        if isinstance(raw.get(name), str):
            raw[name] = str((base / raw[name]).resolve())
    if isinstance(raw.get("model"), str) and (base / raw["model"]).is_dir():
        raw["model"] = str((base / raw["model"]).resolve())
    try:
        job = JobSpec.model_validate(raw)
    except ValidationError as error:
        problems += [_problem(item, file) for item in error.errors(include_url=False, include_context=False)]
        job = None
    if problems or job is None:
        raise InvalidJob(f"{len(problems)} mistake{'s' * (len(problems) != 1)} in the job", problems)
    return job


def _substitute(
    value: Any, environment: Mapping[str, str], where: str, problems: list[Problem], file: str | None
) -> Any:
    if isinstance(value, dict):
        return {
            k: _substitute(v, environment, f"{where}.{k}" if where else str(k), problems, file)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [_substitute(v, environment, f"{where}[{i}]", problems, file) for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def look_up(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in environment:
            remedy = f"export {name}=... before the command"
            problems.append(
                Problem("missing_variable", where, f"${{{name}}} is not set in the environment", remedy, file)
            )
        return environment.get(name, "")

    return _VARIABLE.sub(look_up, value)


_REMEDIES = {
    "missing": "add the key",
    "extra_forbidden": "remove the key or mend its spelling",
    "union_tag_not_found": "add `type`",
    "union_tag_invalid": "use one of the grader types that the message names",
}


def _problem(error: Any, file: str | None) -> Problem:
    kind = error["type"]
    parts = [part for part in error["loc"] if part not in ("StringCheckGrader", "function-after[]", "int", "float")]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".") or "job"
    message = error["msg"].removeprefix("Value error, ")
    if parts and parts[-1] in _TRUNCATED_SAMPLING:
        remedy = (
            "remove it: training samples the whole distribution (top_p 1, top_k off), else log-probabilities are wrong"
        )
        return Problem("truncated_sampling", field, "is refused in training", remedy, file)
    given = error.get("input")
    if isinstance(given, str | int | float) and not isinstance(given, bool) and "headers" not in parts:
        message += f" (given: {given!r})"
    return Problem(f"invalid_{kind}", field, message, _REMEDIES.get(kind, "give a value that fits the message"), file)
