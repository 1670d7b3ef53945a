"""A resumed run keeps the values that it began with, whatever today's defaults and rules for `auto` are.

The run folder's job.resolved.json has them. A setting that the job file does not name takes the run's value; one that
it names must equal it, except for those of `same_job.MAY_DIFFER`, which are taken and shown. What is not recorded is
not compared: values of headers and signing secrets, of a tool's own keys, credentials and queries of URLs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from agent_rft.cluster.planning.layout import CHOSEN, layout_text
from agent_rft.cluster.planning.placement import RECORDED, Placement, RecordedLayout
from agent_rft.cluster.preflight.resumption.contents import digest_of, has_contents
from agent_rft.cluster.preflight.resumption.same_job import START_AGAIN, Change, Comparison, changed, shown
from agent_rft.cluster.records.run_folder import FORMAT, RunFolder, check_version
from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.endpoints import Positive
from agent_rft.spec.job import FILES, JobSpec
from agent_rft.spec.kept import without_todays_bounds
from agent_rft.spec.plan import GROUP_SIZE, Plan

REMEDY_OF_CONTENTS = f"restore its contents, or {START_AGAIN}"
VALIDATION_NUMBERS = ("eval_interval", "eval_samples")
"""The numbers of a plan that the job file may change."""


class _Format(BaseModel):
    """What every version can read of job.resolved.json."""

    format: int = 0


class _Record(BaseModel):
    """What is read here of job.resolved.json."""

    job: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    context_length: Positive | None = None
    layout: RecordedLayout = RecordedLayout()
    digests: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Began:
    """What a run began with: its job without secrets, and what `auto` was resolved to; and its checkpoints so far.

    `digests` maps the fields that name files to digests of their contents. `layout` is what `auto` became in `cluster`.
    """

    job: JobSpec
    plan: Mapping[str, Any]
    context_length: int | None
    digests: Mapping[str, str]
    layout: RecordedLayout
    warnings: tuple[str, ...] = ()
    num_checkpoints: int = 0

    @classmethod
    def of(cls, folder: RunFolder) -> Began:
        """Read from a run folder.

        Raises:
            MadeBefore: A version before 0.2.0 wrote the folder.
            InvalidJob: The folder does not say it, or was written by a newer version.
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
            raise InvalidJob(f"{what}: its job.resolved.json is damaged ({_first(error)}); {START_AGAIN}") from None
        except (ValueError, RecursionError) as error:
            raise InvalidJob(f"{what}: its job.resolved.json is damaged ({error}); {START_AGAIN}") from None
        if record.job is None or record.plan is None:
            raise InvalidJob(f"{what}: it has no job.resolved.json, which says how the run began; {START_AGAIN}")
        job, warnings = without_todays_bounds(_as_in_a_file(record.job), "the run")
        written = len(list(folder.checkpoints.glob("step-*")))
        return cls(job, record.plan, record.context_length, record.digests, record.layout, tuple(warnings), written)

    def plan_of(self, job: JobSpec, today: Plan) -> Plan:
        """The run's plan for the kept `job`; numbers that its version did not have yet are today's.

        Raises:
            InvalidJob: The run's plan is none.
        """
        hyperparameters = (job.method.reinforcement or job.supervised).hyperparameters
        named = {name for name in VALIDATION_NUMBERS if getattr(hyperparameters, name, "auto") != "auto"}
        numbers = {name: value for name, value in self.plan.items() if name in Plan.model_fields.keys() - named}
        try:
            return Plan.model_validate(today.model_dump() | numbers)
        except ValidationError as error:
            raise InvalidJob(
                f"cannot resume: the plan in the run's job.resolved.json is damaged ({_first(error)}); {START_AGAIN}"
            ) from None

    def keep(self, job: JobSpec) -> JobSpec:
        """Return the job, whose model is a local folder, with the run's values.

        Raises:
            InvalidJob: The job has other values; lists all of them.
        """
        comparison = Comparison(self._resolved())
        kept = comparison.kept(job, self.job)
        problems = [*comparison.problems, *self._moved(job)]
        if problems:
            raise InvalidJob("cannot resume", problems)
        if kept.cluster.context_length == "auto" and self.context_length is not None:
            cluster = kept.cluster.model_copy(update={"context_length": self.context_length})
            kept = kept.model_copy(update={"cluster": cluster})
        return kept

    def changes(self, kept: JobSpec) -> tuple[Change, ...]:
        """What differs, and may, between the job that `keep` has returned and the run's."""
        comparison = Comparison(self._resolved())
        comparison.kept(kept, self.job)
        now, was = paths_of(kept), paths_of(self.job)
        moved = [Change(name, shown(str(now[name])), shown(str(was[name]))) for name in was if now[name] != was[name]]
        return (*moved, *comparison.changes)

    def layout_changes(self, kept: JobSpec, placement: Placement) -> tuple[Change, ...]:
        """Return what no longer fits of the recorded layout, if it is `auto` in the `kept` job.

        The layout as text is one change of `cluster`; settings that are not part of that text follow.
        """
        now = RecordedLayout.of(placement)
        values = {name: (getattr(self.layout, name), getattr(now, name)) for name in RECORDED}
        changed = {
            name: (old, new)
            for name, (old, new) in values.items()
            if getattr(kept.cluster, name) == "auto" and None not in (old, new) and old != new
        }
        before = replace(placement, **{name: old for name, (old, _) in changed.items()})
        layouts = [Change("cluster", layout_text(placement), layout_text(before))] if changed.keys() & CHOSEN else []
        others = [(name, *both) for name, both in changed.items() if name not in CHOSEN]
        return *layouts, *(Change(f"cluster.{name}", shown(new), shown(old)) for name, old, new in others)

    def _resolved(self) -> dict[str, Any]:
        """The numbers that `auto` became; none that the record lacks, or that are damaged."""
        section, plan = f"method.{self.job.method.type}", self.plan
        algorithm = self.job.method.reinforcement or self.job.supervised
        multiplier = algorithm.hyperparameters.learning_rate_multiplier
        found = {
            "hyperparameters.batch_size": plan.get("batch_size"),
            "hyperparameters.n_epochs": plan.get("n_epochs"),
            "hyperparameters.learning_rate_multiplier": 1.0,
            "hyperparameters.compute_multiplier": _divided(plan.get("group_size"), GROUP_SIZE),
            "hyperparameters.eval_interval": plan.get("eval_interval"),
            "hyperparameters.eval_samples": plan.get("eval_samples"),
            "algorithm.learning_rate": _divided(plan.get("learning_rate"), 1.0 if multiplier == "auto" else multiplier),
        }
        numbers = {f"{section}.{name}": value for name, value in found.items()}
        numbers["cluster.context_length"] = self.context_length
        numbers |= {f"cluster.{name}": getattr(self.layout, name) for name in RECORDED}
        known = {name: value for name, value in numbers.items() if value is not None}
        return known | {f"{section}.algorithm.lora": self.job.optimizer.adapter}

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
            elif not (now == was if digest is None else has_contents(now, digest) is not False):
                if now != was:
                    yield changed(field, str(now), str(was))
                else:
                    only = "" if field == "model" else "; rows may only be appended"
                    message = f"its contents have changed since the run began{only}"
                    yield Problem("job_changed", field, message, REMEDY_OF_CONTENTS)
        for field in paths.keys() - paths_of(self.job).keys():
            yield changed(field, str(paths[field]), None)


def paths_of(job: JobSpec) -> dict[str, Path]:
    """Return the files that a job names, and its model, which is a local folder; a missing model is its name."""
    files = {name: Path(path) for name in FILES if (path := getattr(job, name)) is not None}
    return files | {"model": Path(job.model)}


def digests_of(job: JobSpec) -> dict[str, str]:
    """Digests of the contents of a job's files and model."""
    return {field: digest for field, path in paths_of(job).items() if (digest := digest_of(path)) is not None}


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def _as_in_a_file(recorded: dict[str, Any]) -> dict[str, Any]:
    """A recorded job in the form of a job file: the record has the bare schema of `response_format`."""
    match recorded:
        case {"method": {"reinforcement": {"response_format": dict(schema)}}}:
            method = recorded["method"]
            wrapped = method["reinforcement"] | {"response_format": {"type": "json_schema", "schema": schema}}
            return recorded | {"method": method | {"reinforcement": wrapped}}
    return recorded


def _divided(number: Any, by: float) -> float | None:
    return number / by if isinstance(number, int | float) and by else None
