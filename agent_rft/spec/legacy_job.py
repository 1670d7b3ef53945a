"""Reader of jobs that an earlier version of agent-rft accepted. Values outside newer bounds are kept with a warning."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.config_reader import KeyPath, describe_requirement, format_key_path, to_key_path
from agent_rft.spec.job import JobSpec

BOUND_ERRORS = frozenset(
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
"""Pydantic error types of values that violate a bound but can still be used."""
UNKNOWN, UNKNOWN_TYPE = "extra_forbidden", "union_tag_invalid"


def load_legacy_job(raw: Mapping[str, Any], owner: str) -> tuple[JobSpec, list[str]]:
    """Return the job in `raw`, and a warning for each value outside the current bounds and each removed setting.

    `owner` is the subject of the warnings, such as "the run".

    Raises:
        InvalidJob: A value has a type or structure that this version does not support.
    """
    try:
        return JobSpec.model_validate(raw), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    found: dict[KeyPath, list[ErrorDetails]] = {}  # a value with several allowed types has an error for each
    for item in errors:
        found.setdefault(to_key_path(item["loc"], raw, missing=item["type"] == "missing"), []).append(item)
    kept: list[KeyPath] = []
    dropped: list[KeyPath] = []
    warnings, problems = [], []
    for path, items in found.items():
        field, item = format_key_path(path) or "job", next((i for i in items if i["type"] in BOUND_ERRORS), items[0])
        if item["type"] in BOUND_ERRORS:
            kept.append(path)
            bound = f"in new jobs it {describe_requirement(item)}"
            warnings.append(f"{field}: {owner} still uses {item['input']!r}; {bound}")
        elif item["type"] == UNKNOWN or (item["type"] == UNKNOWN_TYPE and path[0] == "integrations"):
            dropped.append(path)
            warnings.append(removed_setting_warning(field, owner))
        else:
            fix = "resume the job with the version of agent-rft that started it"
            problems.append(
                Problem("setting_differs", field, f"{owner} has a value in an older format: {item['msg']}", fix)
            )
    if problems:
        raise InvalidJob("the job was made by another version of agent-rft", problems)
    return load_without_bounds(raw, kept, dropped), warnings


def load_without_bounds(
    raw: Mapping[str, Any], unchanged: Sequence[KeyPath], dropped: Sequence[KeyPath] = ()
) -> JobSpec:
    """Return the job in `raw` without the values at the paths `dropped`.

    The values at the paths `unchanged` are kept although they violate a bound.

    Raises:
        InvalidJob: The rest of the job is invalid.
    """
    rest = copy.deepcopy(dict(raw))
    values = [(path, _pop_value(rest, path)) for path in unchanged]
    for path in reversed(dropped):  # last item of a list first, so that indices stay valid
        _pop_value(rest, path)
    try:
        job = JobSpec.model_validate(rest)
    except ValidationError as error:
        raise InvalidJob(f"the job was made by another version of agent-rft: {error.errors()[0]['msg']}") from None
    for path, value in values:
        job = _replace_value(job, path, _convert_number(value))
    return job


def removed_setting_warning(field: str, owner: str) -> str:
    """Return a warning that the setting no longer exists, and that `owner`, such as "the run", continues without it."""
    return f"{field}: this setting no longer exists; {owner} continues without it"


def has_value(raw: Any, path: KeyPath) -> bool:
    """Return whether `raw` has a value at `path`."""
    for part in path:
        if not (part in raw if isinstance(raw, Mapping) else isinstance(raw, list) and part in range(len(raw))):
            return False
        raw = raw[part]
    return True


def _pop_value(raw: Any, path: KeyPath) -> Any:
    for part in path[:-1]:
        raw = raw[part]
    return raw.pop(path[-1])


def _convert_number(value: Any) -> Any:
    """Return a number or numeric string as an int if it is whole, else as a float; return other values unchanged."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return value
    return int(number) if number.is_integer() else number


def _replace_value(part: Any, path: KeyPath, value: Any) -> Any:
    """Return a copy of `part` with `value` at `path`, without validation by pydantic."""
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(part, BaseModel):
        return part.model_copy(update={str(key): _replace_value(getattr(part, str(key)), rest, value)})
    if isinstance(part, dict):
        return part | {key: _replace_value(part.get(key), rest, value)}
    return tuple(_replace_value(item, rest, value) if i == key else item for i, item in enumerate(part))
