"""Recorded values of a run. A resumed run keeps them, even if the defaults or the rules for `auto` have changed.

The values are recorded in the run folder's job.resolved.json. A setting that the job file leaves out gets the recorded
value. A setting that the job file contains must equal the recorded value. Settings in `resume_compat.MAY_DIFFER` are
exceptions: their new values are used and shown.

Secrets are neither recorded nor compared. Secrets are the values of headers, signing secrets, extra fields of tools,
and the credentials and queries of URLs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from agent_rft.cluster.checks.resumption.file_digests import digest_path, matches_digest
from agent_rft.cluster.checks.resumption.resume_compat import (
    START_AGAIN,
    ResumeComparison,
    SettingDifference,
    difference_problem,
    format_value,
)
from agent_rft.cluster.planning.layout import CHOSEN, layout_text
from agent_rft.cluster.planning.placement import RECORDED, Placement, RecordedLayout
from agent_rft.cluster.records.run_folder import FORMAT, RunFolder, check_version
from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.endpoints import PositiveInt
from agent_rft.spec.job import FILES, JobSpec
from agent_rft.spec.legacy_job import load_legacy_job
from agent_rft.spec.step_plan import GROUP_SIZE, StepPlan

CONTENTS_FIX = f"restore the contents, or {START_AGAIN}"
VALIDATION_NUMBERS = ("eval_interval", "eval_samples")
"""Validation settings in the plan. A resumed run may set new values for these settings in its job file."""


class _Format(BaseModel):
    """Format number in job.resolved.json."""

    format: int = 0


class _Record(BaseModel):
    """Parts of job.resolved.json that a resumed run needs."""

    job: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    context_length: PositiveInt | None = None
    layout: RecordedLayout = RecordedLayout()
    digests: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Record of a run's start: its job without secrets, and the values to which `auto` was resolved.

    `digests` maps each job field that names a file to the digest of the file's contents. `layout` has the resolved
    values of the job's section `cluster`. `num_checkpoints` is the current number of checkpoints.
    """

    job: JobSpec
    plan: Mapping[str, Any]
    context_length: int | None
    digests: Mapping[str, str]
    layout: RecordedLayout
    warnings: tuple[str, ...] = ()
    num_checkpoints: int = 0

    @classmethod
    def load(cls, folder: RunFolder) -> RecordedRun:
        """Read the record from a run folder.

        Raises:
            OutdatedFormat: A version before 0.2.0 wrote the folder.
            InvalidJob: The record is missing or damaged, or a newer version wrote the folder.
        """
        what = f"cannot resume {folder.path}"
        try:
            found = folder.job()
            check_version(folder.path, found)
            if _Format.model_validate(found).format > FORMAT:
                raise InvalidJob(f"{what}: it was written by a newer version of agent-rft; resume it with that version")
            record = _Record.model_validate(found)
        except OSError as error:
            raise InvalidJob(f"{what}: its job.resolved.json cannot be read: {error.strerror}") from None
        except ValidationError as error:
            raise InvalidJob(f"{what}: its job.resolved.json is damaged ({_describe(error)}); {START_AGAIN}") from None
        except (ValueError, RecursionError) as error:
            raise InvalidJob(f"{what}: its job.resolved.json is damaged ({error}); {START_AGAIN}") from None
        if record.job is None or record.plan is None:
            raise InvalidJob(f"{what}: its job.resolved.json is missing, or lacks the job or the plan; {START_AGAIN}")
        job, warnings = load_legacy_job(_to_job_file_format(record.job), "the run")
        written = len(list(folder.checkpoints.glob("step-*")))
        return cls(job, record.plan, record.context_length, record.digests, record.layout, tuple(warnings), written)

    def recorded_plan(self, job: JobSpec, current: StepPlan) -> StepPlan:
        """Return the recorded plan for the resumed `job`.

        A number comes from the plan `current` if the record lacks the number, or if the number is in VALIDATION_NUMBERS
        and the job sets it.

        Raises:
            InvalidJob: The recorded plan is damaged.
        """
        hyperparameters = (job.method.reinforcement or job.supervised).hyperparameters
        named = {name for name in VALIDATION_NUMBERS if getattr(hyperparameters, name, "auto") != "auto"}
        numbers = {name: value for name, value in self.plan.items() if name in StepPlan.model_fields.keys() - named}
        try:
            return StepPlan.model_validate(current.model_dump() | numbers)
        except ValidationError as error:
            raise InvalidJob(
                f"cannot resume: the plan in the run's job.resolved.json is damaged ({_describe(error)}); {START_AGAIN}"
            ) from None

    def apply_to(self, job: JobSpec) -> JobSpec:
        """Return `job` with its unset settings filled in from the record. The job's model must be a local folder.

        Raises:
            InvalidJob: The job and the record differ in settings or files that must not change. The exception lists all
                differences.
        """
        comparison = ResumeComparison(self._resolved_numbers())
        resumed = comparison.merge(job, self.job)
        problems = [*comparison.problems, *self._file_problems(job)]
        if problems:
            raise InvalidJob("cannot resume", problems)
        if resumed.cluster.context_length == "auto" and self.context_length is not None:
            cluster = resumed.cluster.model_copy(update={"context_length": self.context_length})
            resumed = resumed.model_copy(update={"cluster": cluster})
        return resumed

    def list_changes(self, resumed: JobSpec) -> tuple[SettingDifference, ...]:
        """Return the permitted differences between the recorded job and `resumed`, the job that `apply_to` returned."""
        comparison = ResumeComparison(self._resolved_numbers())
        comparison.merge(resumed, self.job)
        now, was = job_paths(resumed), job_paths(self.job)
        moved = [
            SettingDifference(name, format_value(str(now[name])), format_value(str(was[name])))
            for name in was
            if now[name] != was[name]
        ]
        return (*moved, *comparison.changes)

    def list_layout_changes(self, resumed: JobSpec, placement: Placement) -> tuple[SettingDifference, ...]:
        """Return the differences between the recorded layout and `placement`.

        Only settings that are `auto` in `resumed` are compared. Differences in the settings that CHOSEN lists are
        combined into one difference, which describes both layouts.
        """
        now = RecordedLayout.from_placement(placement)
        values = {name: (getattr(self.layout, name), getattr(now, name)) for name in RECORDED}
        changed = {
            name: (old, new)
            for name, (old, new) in values.items()
            if getattr(resumed.cluster, name) == "auto" and None not in (old, new) and old != new
        }
        before = replace(placement, **{name: old for name, (old, _) in changed.items()})
        layouts = (
            [SettingDifference("cluster", layout_text(placement), layout_text(before))]
            if changed.keys() & CHOSEN
            else []
        )
        others = [(name, *both) for name, both in changed.items() if name not in CHOSEN]
        return *layouts, *(
            SettingDifference(f"cluster.{name}", format_value(new), format_value(old)) for name, old, new in others
        )

    def _resolved_numbers(self) -> dict[str, Any]:
        """Return the numbers to which `auto` was resolved, except numbers that are missing or damaged in the record."""
        section, plan = f"method.{self.job.method.type}", self.plan
        algorithm = self.job.method.reinforcement or self.job.supervised
        multiplier = algorithm.hyperparameters.learning_rate_multiplier
        found = {
            "hyperparameters.batch_size": plan.get("batch_size"),
            "hyperparameters.n_epochs": plan.get("n_epochs"),
            "hyperparameters.learning_rate_multiplier": 1.0,
            "hyperparameters.compute_multiplier": _divide_number(plan.get("group_size"), GROUP_SIZE),
            "hyperparameters.eval_interval": plan.get("eval_interval"),
            "hyperparameters.eval_samples": plan.get("eval_samples"),
            "algorithm.learning_rate": _divide_number(
                plan.get("learning_rate"), 1.0 if multiplier == "auto" else multiplier
            ),
        }
        numbers = {f"{section}.{name}": value for name, value in found.items()}
        numbers["cluster.context_length"] = self.context_length
        numbers |= {f"cluster.{name}": getattr(self.layout, name) for name in RECORDED}
        known = {name: value for name, value in numbers.items() if value is not None}
        return known | {f"{section}.algorithm.lora": self.job.optimizer_settings.adapter}

    def _file_problems(self, job: JobSpec) -> Iterator[Problem]:
        """Yield a problem for each file of `job` that does not match the run's file.

        Unreadable files are skipped, because the check of the job reports them.
        """
        paths = job_paths(job)
        for field, was in job_paths(self.job).items():
            now = paths.get(field) if field in job.model_fields_set else was
            digest = self.digests.get(field)
            if now is None:
                yield difference_problem(field, None, str(was))
            elif not (now == was if digest is None else matches_digest(now, digest) is not False):
                if now != was:
                    yield difference_problem(field, str(now), str(was))
                else:
                    only = "" if field == "model" else "; rows may only be appended"
                    message = f"the contents have changed since the run began{only}"
                    yield Problem("setting_differs", field, message, CONTENTS_FIX)
        for field in paths.keys() - job_paths(self.job).keys():
            yield difference_problem(field, str(paths[field]), None)


def job_paths(job: JobSpec) -> dict[str, Path]:
    """Return the paths of a job's files and model folder, by job field.

    If the model is not a local folder, the path is the model's name.
    """
    files = {name: Path(path) for name in FILES if (path := getattr(job, name)) is not None}
    return files | {"model": Path(job.model)}


def digest_job(job: JobSpec) -> dict[str, str]:
    """Return the digests of a job's files and model, by field."""
    return {field: digest for field, path in job_paths(job).items() if (digest := digest_path(path)) is not None}


def _describe(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def _to_job_file_format(recorded: dict[str, Any]) -> dict[str, Any]:
    """Convert a recorded job to the format of a job file.

    In the record, `response_format` is only the schema. In a job file, `response_format` is an object with the schema.
    """
    match recorded:
        case {"method": {"reinforcement": {"response_format": dict(schema)}}}:
            method = recorded["method"]
            wrapped = method["reinforcement"] | {"response_format": {"type": "json_schema", "schema": schema}}
            return recorded | {"method": method | {"reinforcement": wrapped}}
    return recorded


def _divide_number(number: Any, by: float) -> float | None:
    return number / by if isinstance(number, int | float) and by else None
