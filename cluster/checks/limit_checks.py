"""Checks of a job against the operator's limits on rows, rollouts, cores and GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_rft.cluster.planning.cluster_plan import count_rows
from agent_rft.errors import Problem
from agent_rft.spec.operator.operator_config import JobLimits

NUM_ROWS = "invalid_n_examples"


def check_row_limits(
    limits: JobLimits, training: Path, validation: Path | None, samples: int | None = None
) -> list[Problem]:
    """Return problems if a file has too few or too many rows, or if a readiness check would sample too many rollouts.

    `samples` is the number of rollouts that a readiness check samples per row; None if the job trains.
    """
    found = []
    count = count_rows(training)
    if not limits.min_training_rows <= count <= limits.max_training_rows:
        allowed = f"{limits.min_training_rows:,} to {limits.max_training_rows:,}"
        found.append(_row_count_problem("training_file", count, allowed, training))
    if samples is not None and samples * count > limits.max_readiness_rollouts:
        message = f"{samples} samples of each of {count:,} rows are {samples * count:,} rollouts"
        message += f", but the operator's limit is {limits.max_readiness_rollouts:,}"
        fix = "use fewer samples or fewer rows, or ask the operator to raise jobs.max_readiness_rollouts"
        found.append(Problem("over_limit", "samples", message, fix))
    if validation is not None and (count := count_rows(validation)) > limits.max_validation_rows:
        found.append(
            _row_count_problem("validation_file", count, f"at most {limits.max_validation_rows:,}", validation)
        )
    return found


def check_resource_limits(limits: JobLimits, bundles: Sequence[Mapping[str, float]]) -> list[Problem]:
    """Return problems if a job needs too many cores or GPUs. The keys of `bundles` are Ray's resource names."""
    found = []
    for kind, name, limit in (("CPU", "cores", limits.max_cores), ("GPU", "GPUs", limits.max_gpus)):
        needed = sum(bundle.get(kind, 0.0) for bundle in bundles)
        if limit is not None and needed > limit:
            message = f"the job needs {needed:g} {name}, but the operator's limit is {limit}"
            setting = "jobs.max_cores" if kind == "CPU" else "jobs.max_gpus"
            fix = f"lower engines, learner_ranks or their resources, or ask the operator to raise {setting}"
            found.append(Problem("over_limit", "cluster", message, fix))
    return found


def _row_count_problem(field: str, count: int, allowed: str, path: Path) -> Problem:
    message = f"has {count:,} row{'s' * (count != 1)}, but a job must have {allowed}"
    return Problem(NUM_ROWS, field, message, "add or remove rows", path.name)
