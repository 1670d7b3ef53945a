"""Reads a job that an earlier version accepted: what is stricter today is a warning, and the job keeps its values."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.job import JobSpec
from agent_rft.spec.reader import KeyPath, field_name, key_path_of

BOUNDS = frozenset(
    {
        "greater_than",
        "greater_than_equal",
        "less_than",
        "less_than_equal",
        "multiple_of",
        "string_too_long",
        "string_too_short",
    }
)
"""Pydantic's types of errors whose value the program still understands."""
UNKNOWN, UNKNOWN_TYPE = "extra_forbidden", "union_tag_invalid"


def without_todays_bounds(raw: Mapping[str, Any], whose: str) -> tuple[JobSpec, list[str]]:
    """The job `raw`, with warnings for values outside of today's bounds and for settings that no longer exist.

    Raises:
        InvalidJob: A value has another form than today's.
    """
    try:
        return JobSpec.model_validate(raw), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    found: dict[KeyPath, list[ErrorDetails]] = {}  # a value that may have several types has an error for each
    for item in errors:
        found.setdefault(key_path_of(item["loc"], raw, missing=item["type"] == "missing"), []).append(item)
    kept: list[KeyPath] = []
    dropped: list[KeyPath] = []
    warnings, problems = [], []
    for path, items in found.items():
        field, item = field_name(path) or "job", next((i for i in items if i["type"] in BOUNDS), items[0])
        if item["type"] in BOUNDS:
            kept.append(path)
            warnings.append(f"{field}: {whose} keeps {item['input']!r}, which a new job may not have ({item['msg']})")
        elif item["type"] == UNKNOWN or (item["type"] == UNKNOWN_TYPE and path[0] == "integrations"):
            dropped.append(path)
            warnings.append(gone(field, whose))
        else:
            remedy = "continue it with the version of agent-rft that began it"
            problems.append(
                Problem("job_changed", field, f"{whose} has a value of an older form: {item['msg']}", remedy)
            )
    if problems:
        raise InvalidJob("the job was made by another version of agent-rft", problems)
    return with_values(raw, kept, dropped), warnings


def with_values(raw: Mapping[str, Any], kept: Sequence[KeyPath], dropped: Sequence[KeyPath] = ()) -> JobSpec:
    """The job `raw` with the values at `kept` as they are, although they break a bound.

    Raises:
        InvalidJob: Without them, the rest is not a job.
    """
    rest = copy.deepcopy(dict(raw))
    values = [(path, _taken(rest, path)) for path in kept]
    for path in reversed(dropped):  # of a list, the last item first
        _taken(rest, path)
    try:
        job = JobSpec.model_validate(rest)
    except ValidationError as error:
        raise InvalidJob(f"the job was made by another version of agent-rft: {error.errors()[0]['msg']}") from None
    for path, value in values:
        job = _with(job, path, _number(value))
    return job


def gone(field: str, whose: str) -> str:
    """The warning of a setting that was removed from the program."""
    return f"{field}: this setting no longer exists; {whose} continues without it"


def has(raw: Any, path: KeyPath) -> bool:
    """Whether there is a value at `path`."""
    for part in path:
        if not (part in raw if isinstance(raw, Mapping) else isinstance(raw, list) and part in range(len(raw))):
            return False
        raw = raw[part]
    return True


def _taken(raw: Any, path: KeyPath) -> Any:
    for part in path[:-1]:
        raw = raw[part]
    return raw.pop(path[-1])


def _number(value: Any) -> Any:
    """A number that is written as text, as those of variables are, or as 2.0; anything else as it is."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return value
    return int(number) if number.is_integer() else number


def _with(part: Any, path: KeyPath, value: Any) -> Any:
    """`part` with another value at `path`, which pydantic does not check."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(part, BaseModel):
        return part.model_copy(update={str(key): _with(getattr(part, str(key)), rest, value)})
    if isinstance(part, dict):
        return part | {key: _with(part.get(key), rest, value)}
    return tuple(_with(item, rest, value) if i == key else item for i, item in enumerate(part))
