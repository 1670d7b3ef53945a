"""Comparison of a job with the run that it resumes: settings that affect what is learned must be the same.

The following must be the same: the graders and guards, the reward, the algorithm, the seed, the answer format, the
limits of calls, tokens and steps, and the contents of the model and the files. Settings in `MAY_DIFFER` may change:
access to endpoints, resources, the interval of validations and early stopping. Settings that are added to the schema
later must be the same, unless they are added to `MAY_DIFFER`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic_core import to_jsonable_python

from agent_rft.cluster.records.redaction import REDACTED, to_plain_json
from agent_rft.errors import Problem
from agent_rft.spec.endpoints import Endpoint, ToolSpec
from agent_rft.spec.graders import EndpointGrader, PythonGrader
from agent_rft.spec.job import (
    FILES,
    CommonHyperparameters,
    Hyperparameters,
    JobSpec,
    Reinforcement,
    RolloutLimits,
    Supervised,
)

MAX_SHOWN_CHARS = 80
START_AGAIN = "start a new run with `model` set to the checkpoint"
FIX = f"resume with the value that the run began with, or {START_AGAIN}"
SECRETS_FIX = "set it in the job file, because run folders contain no secrets"
MAY_DIFFER: Mapping[type[BaseModel], frozenset[str]] = {
    JobSpec: frozenset({"suffix", "integrations", "cluster"}),
    CommonHyperparameters: frozenset({"eval_interval"}),
    Hyperparameters: frozenset({"eval_samples"}),
    Reinforcement: frozenset({"session", "signing_secret", "early_stop"}),
    RolloutLimits: frozenset({"rollout_timeout_s", "max_rollout_retries", "straggler_wait_s", "max_failure_rate"}),
    Endpoint: frozenset(
        {"headers", "timeout_s", "attempt_timeout_s", "max_concurrency", "rate_limit_per_s", "max_retries"}
    ),
    ToolSpec: frozenset({"server_url", "idempotent", "hedge_after_s"}),
    EndpointGrader: frozenset({"url", "hedge_after_s", "rate_limit_per_s"}),
    PythonGrader: frozenset({"timeout_s"}),
}
"""Settings that may change when a run resumes, by class. If a setting is a section, everything in it may change."""


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """Changed setting of a resumed run: its `new` value and the `old` value that the run began with, as text."""

    setting: str
    new: str
    old: str


def may_differ(model: type[BaseModel], name: str) -> bool:
    """Return whether a setting may change when a run resumes.

    The class `model` or one of its base classes defines the setting `name`.
    """
    return any(name in MAY_DIFFER.get(base, ()) for base in model.__mro__)


def difference_problem(setting: str, now: Any, was: Any, fix: str = FIX) -> Problem:
    """Return the problem for a setting that changed from `was` in the original run to `now` in the resumed job."""
    return Problem(
        "setting_differs", setting, f"is {format_value(now)}, but the run began with {format_value(was)}", fix
    )


@dataclass(frozen=True, slots=True)
class ResumeComparison:
    """Comparison of a job's settings with the run that it resumes. Files and the model are not compared.

    `resolved` maps the path of a setting to the number that the run used for `auto`.
    """

    resolved: Mapping[str, Any]
    problems: list[Problem] = field(default_factory=list)
    changes: list[SettingDifference] = field(default_factory=list)

    def merge(self, job: JobSpec, before: JobSpec) -> JobSpec:
        """Return `job`, with unset settings filled in from the run's job `before`.

        Differences that are not allowed are added to `problems`, the others to `changes`.
        """
        merged: JobSpec = self._merge_settings(
            _with_method_section(job), _with_method_section(before), "", must_match=True
        )
        return merged

    def _merge_settings(self, given: BaseModel, before: BaseModel, at: str, *, must_match: bool) -> Any:
        merged: dict[str, Any] = {}
        for name in type(given).model_fields:
            path, mine, theirs = f"{at}.{name}".lstrip("."), getattr(given, name), getattr(before, name)
            compared = must_match and not may_differ(type(given), name)
            if path in (*FILES, "model"):
                merged[name] = mine if name in given.model_fields_set else theirs
            elif name in given.model_fields_set:
                merged[name] = self._merge(mine, theirs, path, must_match=compared)
            elif _has_secrets(theirs):
                merged[name] = mine
                is_part = isinstance(theirs, BaseModel)  # a section with secrets was probably forgotten
                self._add_difference(path, mine, theirs, must_match=compared or is_part, fix=SECRETS_FIX)
            else:
                merged[name] = theirs
        mine, theirs = given.model_extra or {}, before.model_extra or {}  # the run folder has only their names
        if mine.keys() != theirs.keys():
            self._add_difference(at, sorted(mine), sorted(theirs), must_match=False)
        return given.model_copy(update=merged)

    def _merge(self, given: Any, before: Any, at: str, *, must_match: bool) -> Any:
        if isinstance(given, BaseModel) and type(given) is type(before):
            return self._merge_settings(given, before, at, must_match=must_match)
        if isinstance(given, tuple) and isinstance(before, tuple) and len(given) == len(before):
            pairs = enumerate(zip(given, before, strict=True))
            return tuple(self._merge(mine, theirs, f"{at}[{i}]", must_match=must_match) for i, (mine, theirs) in pairs)
        if isinstance(given, dict) and isinstance(before, dict) and given.keys() == before.keys():
            return {
                key: self._merge(value, before[key], f"{at}.{key}", must_match=must_match)
                for key, value in given.items()
            }
        if at in self.resolved:
            if given == "auto":
                return before  # the run's plan has the number
            before = self.resolved[at] if before == "auto" else before
        if not _are_equal(redact_value(given), redact_value(before)):
            self._add_difference(at, given, before, must_match=must_match)
        return given

    def _add_difference(self, at: str, given: Any, before: Any, *, must_match: bool, fix: str = FIX) -> None:
        now, was = redact_value(given), redact_value(before)
        if must_match:
            self.problems.append(difference_problem(at, now, was, fix))
        else:
            self.changes.append(SettingDifference(at, format_value(now), format_value(was)))


def _with_method_section(job: JobSpec) -> JobSpec:
    """Return the job with its method's section, which supervised jobs may leave out."""
    if job.method.type == "supervised" and job.method.supervised is None:
        return job.model_copy(update={"method": job.method.model_copy(update={"supervised": Supervised()})})
    return job


def _are_equal(now: Any, was: Any) -> bool:
    if isinstance(now, float) and isinstance(was, float):
        return math.isclose(now, was, rel_tol=1e-12)  # a learning rate that was multiplied and divided again
    return bool(now == was)


def _has_secrets(value: Any) -> bool:
    if isinstance(value, BaseModel):
        return bool(value.model_extra) or any(_has_secrets(getattr(value, name)) for name in type(value).model_fields)
    if isinstance(value, dict):
        return any(map(_has_secrets, value.values()))
    if isinstance(value, str):
        return REDACTED in value
    return isinstance(value, SecretStr) or (isinstance(value, tuple) and any(map(_has_secrets, value)))


def redact_value(value: Any) -> Any:
    """Return a value as a run folder records it. Extra fields of a tool are redacted, because they may be secrets."""
    if isinstance(value, BaseModel):
        found = {name: redact_value(getattr(value, name)) for name in type(value).model_fields}
        return found | dict.fromkeys(value.model_extra or {}, REDACTED)
    if isinstance(value, tuple):
        return [redact_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): redact_value(item) for key, item in value.items()}
    return to_plain_json(to_jsonable_python(value))


def format_value(value: Any) -> str:
    """Return a value as text for a message. Long text is cut in the middle, because long paths differ at their ends."""
    text = "not set" if value is None else json.dumps(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:20]}...{text[-60:]}"
