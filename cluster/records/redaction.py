"""Redaction: removes secrets from jobs, and credentials and queries from the URLs in JSON values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from agent_rft.spec.job import JobSpec

REDACTED = "**********"


def public_job(job: JobSpec, *, exclude_unset: bool = False) -> dict[str, Any]:
    """Return the job as JSON without secrets.

    If `exclude_unset`, only settings that were set in the job are included; otherwise, all settings of the job's method
    are included. Unknown keys of a tool may contain secrets, so their values are redacted too.
    """
    public = job.model_dump(mode="json", exclude_unset=exclude_unset)
    if job.method.reinforcement is not None:
        tools = public["method"]["reinforcement"].get("tools", [])
        for tool, shown in zip(job.reinforcement.tools, tools, strict=True):
            shown |= dict.fromkeys(tool.model_extra or {}, REDACTED)
    elif not exclude_unset:
        public["method"]["supervised"] = job.supervised.model_dump(mode="json")
    return public


def to_plain_json(value: Any) -> Any:
    """Convert a value to JSON types. Non-finite numbers become null; credentials and queries in URLs are redacted."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): to_plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    return _URL.sub(_redact_url, str(value))


def replace_substrings(value: Any, names: Mapping[str, str]) -> Any:
    """Replace the keys of `names` with their values in all strings of a JSON value, and return a copy."""
    if isinstance(value, dict):
        return {key: replace_substrings(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [replace_substrings(item, names) for item in value]
    if isinstance(value, str):
        for hidden in sorted(names, key=len, reverse=True):
            value = value.replace(hidden, names[hidden])
    return value


# The bounded scheme keeps matching linear: a long word without a URL would take quadratic time.
_URL = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[^\s'\"<>]+", re.IGNORECASE)


def _redact_url(url: re.Match[str]) -> str:
    try:
        parts = urlsplit(url.group())
    except ValueError:
        return REDACTED
    host = f"{REDACTED}@{parts.netloc.rpartition('@')[2]}" if "@" in parts.netloc else parts.netloc
    return urlunsplit((parts.scheme, host, parts.path, REDACTED if parts.query else "", ""))
