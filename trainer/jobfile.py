"""Job files: YAML or JSON -> JobSpec, with every mistake named by its field and line.

Values that come from the environment are secrets: no message shows one.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from trainer.errors import InvalidJob, Problem
from trainer.spec import JobSpec

Place = tuple[str | int, ...]
"""Where something stands in a job: keys and indices from its root."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PATHS = ("training_file", "validation_file", "test_file")
_TRUNCATED_SAMPLING = ("top_p", "top_k", "min_p")
_GRADER: Place = ("method", "reinforcement", "grader")
_TOOLS: Place = ("method", "reinforcement", "tools")
_STAND_IN_GRADER = {"type": "string_check", "input": "", "reference": "", "operation": "eq"}
_STAND_IN_URL = "http://stand-in.invalid"
_REMEDIES = {
    "missing": "add the key",
    "extra_forbidden": "remove the key or mend its spelling",
    "union_tag_not_found": "add `type`",
    "union_tag_invalid": "use one of the grader types that the message names",
}


def load_job(path: Path, environment: Mapping[str, str] = os.environ) -> JobSpec:
    """Read a job. `${NAME}` in any text stands for an environment variable, so that secrets stay out of the file.

    Raises:
        InvalidJob: with all problems of the file's form.
    """
    return _whole(*read_job(path, environment))


def read_job(path: Path, environment: Mapping[str, str] = os.environ) -> tuple[JobSpec | None, list[Problem]]:
    """Like `load_job`, with the problems returned. Beside problems stands what is left of the job without its mistakes
    (None where that is too little): to check its files and its model in one go, never to train it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        remedy = "give the path of a readable YAML or JSON file"
        return None, [Problem("unreadable_job", "job", f"cannot be read: {why}", remedy, str(path))]
    try:
        raw = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        lines = _Lines(yaml.compose(text, yaml.SafeLoader))
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        # Not str(error) of YAML's: it quotes the line, which may hold a secret.
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else getattr(error, "lineno", None)
        why = getattr(error, "problem", None) or getattr(error, "msg", None) or "it is no YAML"
        return None, [Problem("job_syntax", "job", f"cannot be parsed: {why}", "mend the syntax", str(path), line)]
    job, problems = _parse(raw, path.parent, environment, str(path), lines)
    twice = [
        Problem("duplicate_key", _field(place), "stands twice", "keep one of the two", str(path), line)
        for place, line in lines.duplicates()
    ]
    return job, twice + problems


def parse_job(raw: Any, base: Path, environment: Mapping[str, str] = os.environ, file: str | None = None) -> JobSpec:
    """Validate a job that was parsed already; relative paths count from `base`.

    Raises:
        InvalidJob: with all problems of its form.
    """
    return _whole(*_parse(raw, base, environment, file, _Lines(None)))


def _whole(job: JobSpec | None, problems: list[Problem]) -> JobSpec:
    if problems or job is None:
        raise InvalidJob(f"{len(problems)} mistake{'s' * (len(problems) != 1)} in the job", problems)
    return job


def _parse(
    raw: Any, base: Path, environment: Mapping[str, str], file: str | None, lines: _Lines
) -> tuple[JobSpec | None, list[Problem]]:
    if not isinstance(raw, dict):
        return None, [Problem("job_shape", "job", "is no mapping of keys to values", "start with `model: ...`", file)]
    variables = _Variables(environment)
    raw = variables.fill_in(raw, ())
    problems = []
    for place, name in variables.missing:
        message, remedy = f"${{{name}}} is not set in the environment", f"export {name}=... before the command"
        problems.append(Problem("missing_variable", _field(place), message, remedy, file, lines.of(place)))
    for name in _PATHS:
        if isinstance(raw.get(name), str):
            raw[name] = str((base / raw[name]).resolve())
    if isinstance(raw.get("model"), str) and (base / raw["model"]).is_dir():
        raw["model"] = str((base / raw["model"]).resolve())
    wrong = [place for place, _ in variables.missing]
    try:
        job = JobSpec.model_validate(raw)
    except ValidationError as error:
        found: dict[Place, list[Any]] = {}
        for item in error.errors(include_url=False, include_context=False):
            place = _place_of(item["loc"], raw, missing=item["type"] == "missing")
            found.setdefault(place, []).append(item)
        problems += [_problem(items, place, variables, file, lines.of(place)) for place, items in found.items()]
        wrong += found
    return (_rest(raw, wrong) if problems else job), problems


class _Variables:
    """Fills in `${NAME}`, remembers what was filled in and what is missing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._used: dict[str, str] = {}
        self.missing: list[tuple[Place, str]] = []

    def fill_in(self, value: Any, place: Place) -> Any:
        if isinstance(value, dict):
            return {key: self.fill_in(inner, (*place, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.fill_in(inner, (*place, i)) for i, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        return _VARIABLE.sub(lambda match: self._look_up(match[1], place), value)

    def _look_up(self, name: str, place: Place) -> str:
        if name not in self._environment:
            self.missing.append((place, name))
            return ""
        self._used[name] = self._environment[name]
        return self._used[name]

    def hide(self, text: str) -> str:
        """`text` with the names of variables in place of their values."""
        for name, value in self._used.items():
            text = text.replace(value, f"${{{name}}}") if value else text
        return text


class _Lines:
    """The lines of a parsed YAML document (JSON is YAML)."""

    def __init__(self, root: yaml.Node | None) -> None:
        self._root = root

    def of(self, place: Place) -> int | None:
        """The line of the deepest part of `place` that the document holds."""
        node, line = self._root, None
        for part in place:
            found = next((pair for pair in _children(node) if pair[0] == part), None)
            if found is None:
                break
            _, line, node = found
        return line

    def duplicates(self) -> list[tuple[Place, int]]:
        """Keys that stand twice in one mapping, of which YAML would silently take the last."""
        found: list[tuple[Place, int]] = []

        def visit(node: yaml.Node | None, place: Place) -> None:
            seen = set()
            for key, line, child in _children(node):
                if key in seen:
                    found.append(((*place, key), line))
                seen.add(key)
                visit(child, (*place, key))

        visit(self._root, ())
        return found


def _children(node: yaml.Node | None) -> Iterator[tuple[str | int, int, yaml.Node]]:
    """(key or index, line, value) of each child."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield str(key.value), key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield i, value.start_mark.line + 1, value


# -- what pydantic found -----------------------------------------------------------------------------------------------


def _problem(errors: list[Any], place: Place, variables: _Variables, file: str | None, line: int | None) -> Problem:
    """`errors` has one entry for each way in which the value could have been right."""
    kind = errors[0]["type"]
    first, *others = [error["msg"].removeprefix("Value error, ") for error in errors]
    message = ", or ".join([first, *(other.removeprefix("Input should be ") for other in others)])
    if place and place[-1] in _TRUNCATED_SAMPLING:
        remedy = (
            "remove it: training samples the whole distribution (top_p 1, top_k off), else log-probabilities are wrong"
        )
        return Problem("truncated_sampling", _field(place), "is refused in training", remedy, file, line)
    given = errors[0].get("input")
    shown = isinstance(given, str | int | float) and not isinstance(given, bool) and "headers" not in place
    if shown and kind != "extra_forbidden":  # an unknown key may be a secret that was put in the wrong place
        message += f" (given: {given!r})"
    remedy = _REMEDIES.get(kind, "give a value that fits the message")
    return Problem(f"invalid_{kind}", _field(place), variables.hide(message), remedy, file, line)


def _place_of(loc: Sequence[str | int], raw: Any, *, missing: bool) -> Place:
    """Pydantic's location without the names of union members, which are no keys of the job."""
    place: list[str | int] = []
    for part in loc:
        if part in (raw if isinstance(raw, dict) else range(len(raw)) if isinstance(raw, list) else ()):
            place.append(part)
            raw = raw[part]
    return (*place, loc[-1]) if missing else tuple(place)


def _field(place: Place) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".") or "job"


def _rest(raw: Any, wrong: Sequence[Place]) -> JobSpec | None:
    """What is left of a job without what stands at `wrong`. A grader and a tool's server must not be missing: stand-ins
    take their places, so that nothing else looks wrong for want of them."""
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


def _remove(value: Any, place: Place) -> None:
    for part in place[:-1]:
        value = value[part]
    if place and isinstance(value, dict):
        value.pop(place[-1], None)
