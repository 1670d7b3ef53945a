"""A resumed run keeps the values that it began with, whatever today's defaults and rules for `auto` are.

The run folder's job.resolved.json has them. A setting that the job file does not name takes the run's value; one that
it names must equal it. Only `cluster`, headers, signing secrets and the places of files may differ. What is not
recorded is not compared: values of headers and signing secrets, of a tool's own keys, credentials and queries of URLs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import to_jsonable_python

from cluster.planning.model_folder import find_model
from cluster.preflight.contents import digest_of, has_contents
from cluster.records.redact import REDACTED, plain
from cluster.records.run_folder import FORMAT, RunFolder
from trainer.errors import InvalidJob, Problem
from trainer.spec.endpoints import Positive
from trainer.spec.job import FILES, JobSpec, Supervised
from trainer.spec.kept import as_it_was, without_todays_bounds
from trainer.spec.plan import Plan

MAX_SHOWN_CHARS = 80
START_AGAIN = "start a new run with `model` set to the checkpoint"
REMEDY_OF_CONTENTS = f"restore its contents, or {START_AGAIN}"
REMEDY = f"resume with the value that the run began with, or {START_AGAIN}"


class _Format(BaseModel):
    """What every version can read of job.resolved.json."""

    format: int = 0


class _Record(BaseModel):
    """What is read here of job.resolved.json."""

    job: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    context_length: Positive | None = None
    digests: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Began:
    """What a run began with: its job without secrets, and what `auto` was resolved to; and its checkpoints so far.

    `digests` maps the fields that name files to digests of their contents; runs of older versions have none.
    """

    job: JobSpec
    plan: Mapping[str, Any]
    context_length: int | None
    digests: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    num_checkpoints: int = 0

    @classmethod
    def of(cls, folder: RunFolder) -> Began:
        """Read from a run folder.

        Raises:
            InvalidJob: The folder does not say it, or was written by a newer version.
        """
        what = f"cannot resume {folder.path}"
        try:
            found = folder.job()
            if _Format.model_validate(found).format > FORMAT:
                raise InvalidJob(f"{what}: it was written by a newer version of agent-rft; resume it with that version")
            record = _Record.model_validate(found)
        except OSError as error:
            raise InvalidJob(f"{what}: its job.resolved.json cannot be read: {error.strerror}") from None
        except ValidationError as error:
            raise InvalidJob(f"{what}: its job.resolved.json is damaged ({_first(error)}); {START_AGAIN}") from None
        except (ValueError, RecursionError) as error:
            raise InvalidJob(f"{what}: its job.resolved.json is damaged ({error}); {START_AGAIN}") from None
        if record.job is None or record.plan is None:
            raise InvalidJob(f"{what}: it has no job.resolved.json, which says how the run began; {START_AGAIN}")
        job, warnings = without_todays_bounds(_as_in_a_file(as_it_was(record.job)), "the run")
        written = len(list(folder.checkpoints.glob("step-*")))
        return cls(job, record.plan, record.context_length, record.digests, tuple(warnings), written)

    def plan_of(self, today: Plan) -> Plan:
        """The run's plan; numbers that its version did not have yet are today's.

        Raises:
            InvalidJob: The run's plan is none.
        """
        numbers = {name: value for name, value in self.plan.items() if name in Plan.model_fields}
        try:
            return Plan.model_validate(today.model_dump() | numbers)
        except ValidationError as error:
            raise InvalidJob(
                f"cannot resume: the plan in the run's job.resolved.json is damaged ({_first(error)}); {START_AGAIN}"
            ) from None

    def keep(self, job: JobSpec) -> JobSpec:
        """The job with the run's values.

        Raises:
            InvalidJob: The job has other values; lists all of them.
        """
        problems: list[Problem] = []
        kept: JobSpec = _kept(_filled(job), _filled(self.job), "", problems)
        problems += self._moved(job)
        if problems:
            raise InvalidJob("cannot resume", problems)
        if kept.cluster.context_length == "auto" and self.context_length is not None:
            cluster = kept.cluster.model_copy(update={"context_length": self.context_length})
            kept = kept.model_copy(update={"cluster": cluster})
        return kept

    def _moved(self, job: JobSpec) -> Iterator[Problem]:
        """A problem for each file that is another one than the run's, wherever it is now.

        Files that cannot be read are left to the check of the job, which says so.
        """
        paths = paths_of(job)
        for field, was in paths_of(self.job).items():
            now = paths.get(field) if field in job.model_fields_set else was
            digest = self.digests.get(field)
            if now is None:
                yield changed(field, None, str(was))
            elif (now.name != was.name) if digest is None else (has_contents(now, digest) is False):
                if now != was:
                    yield changed(field, str(now), str(was))
                else:
                    only = "" if field == "model" else "; rows may only be appended"
                    message = f"its contents have changed since the run began{only}"
                    yield Problem("job_changed", field, message, REMEDY_OF_CONTENTS)
        for field in paths.keys() - paths_of(self.job).keys():
            yield changed(field, str(paths[field]), None)


def lost_rows(plan: Plan, num_rows: int) -> list[Problem]:
    """A problem if the training file has fewer rows than the run began with; all that is known of older runs."""
    if num_rows >= plan.num_rows:
        return []
    message = f"has {num_rows} rows, but the run began with {plan.num_rows}"
    return [Problem("job_changed", "training_file", message, REMEDY_OF_CONTENTS)]


def paths_of(job: JobSpec) -> dict[str, Path]:
    """The files and the model folder that a job names; a model that is not on this machine is its name."""
    files = {name: Path(path) for name in FILES if (path := getattr(job, name)) is not None}
    return files | {"model": find_model(job.model)[0] or Path(job.model)}


def digests_of(job: JobSpec) -> dict[str, str]:
    """Digests of the contents of a job's files and model."""
    return {field: digest for field, path in paths_of(job).items() if (digest := digest_of(path)) is not None}


def changed(field: str, now: Any, was: Any, remedy: str = REMEDY) -> Problem:
    """The problem of a setting that is another one than the run's."""
    return Problem("job_changed", field, f"is {_shown(now)}, but the run began with {_shown(was)}", remedy)


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


# -- one setting after another -----------------------------------------------------------------------------------------


def _kept(given: Any, before: Any, at: str, problems: list[Problem]) -> Any:
    """`given` with the values of `before` for settings that are not named; adds what differs to `problems`."""
    if _are_secrets(given) or _are_secrets(before):
        return given  # the run folder does not say what they were
    if isinstance(given, BaseModel) and type(given) is type(before):
        return _kept_settings(given, before, at, problems)
    if isinstance(given, tuple) and isinstance(before, tuple) and len(given) == len(before):
        pairs = enumerate(zip(given, before, strict=True))
        return tuple(_kept(mine, theirs, f"{at}[{i}]", problems) for i, (mine, theirs) in pairs)
    if isinstance(given, dict) and isinstance(before, dict) and given.keys() == before.keys():
        return {key: _kept(value, before[key], f"{at}.{key}", problems) for key, value in given.items()}
    if _public(given) != _public(before):
        problems.append(changed(at, _public(given), _public(before)))
    return given


def _kept_settings(given: BaseModel, before: BaseModel, at: str, problems: list[Problem]) -> Any:
    kept: dict[str, Any] = {}
    for name in type(given).model_fields:
        field, mine, theirs = f"{at}.{name}".lstrip("."), getattr(given, name), getattr(before, name)
        if name not in given.model_fields_set:
            kept[name] = theirs
            if _has_secrets(theirs):
                remedy = "name it in the job file: a run folder keeps no secrets"
                problems.append(changed(field, None, _public(theirs), remedy))
        elif at == "cluster" or field in (*FILES, "model"):
            kept[name] = mine
        else:
            kept[name] = _kept(mine, theirs, field, problems)
    mine, theirs = given.model_extra or {}, before.model_extra or {}  # the run folder has their names only
    if mine.keys() != theirs.keys():
        problems.append(changed(at, sorted(mine), sorted(theirs)))
    return given.model_copy(update=kept)


def _filled(job: JobSpec) -> JobSpec:
    """The job with its method's section, which a supervised job may leave out."""
    if job.method.type == "supervised" and job.method.supervised is None:
        return job.model_copy(update={"method": job.method.model_copy(update={"supervised": Supervised()})})
    return job


def _as_in_a_file(recorded: dict[str, Any]) -> dict[str, Any]:
    """A recorded job in the form of a job file: the record has the bare schema of `response_format`."""
    match recorded:
        case {"method": {"reinforcement": {"response_format": dict(schema)}}}:
            method = recorded["method"]
            wrapped = method["reinforcement"] | {"response_format": {"type": "json_schema", "schema": schema}}
            return recorded | {"method": method | {"reinforcement": wrapped}}
    return recorded


def _are_secrets(value: Any) -> bool:
    values = list(value.values()) if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
    return bool(values) and all(isinstance(item, SecretStr) for item in values)


def _has_secrets(value: Any) -> bool:
    if isinstance(value, BaseModel):
        return bool(value.model_extra) or any(_has_secrets(getattr(value, name)) for name in type(value).model_fields)
    if isinstance(value, dict):
        return any(map(_has_secrets, value.values()))
    if isinstance(value, str):
        return REDACTED in value
    return isinstance(value, SecretStr) or (isinstance(value, tuple) and any(map(_has_secrets, value)))


def _public(value: Any) -> Any:
    """The value as it is recorded: a tool's own keys may be secrets."""
    if isinstance(value, BaseModel):
        shown = {name: _public(getattr(value, name)) for name in type(value).model_fields}
        return shown | dict.fromkeys(value.model_extra or {}, REDACTED)
    if isinstance(value, tuple):
        return [_public(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _public(item) for key, item in value.items()}
    return plain(to_jsonable_python(value))


def _shown(value: Any) -> str:
    text = "not set" if value is None else json.dumps(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:20]}...{text[-60:]}"  # paths differ at their ends
