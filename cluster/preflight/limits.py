"""The operator's limits on a job: the number of its rows, rollouts, cores and GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_rft.cluster.planning.plan import count_rows
from agent_rft.errors import Problem
from agent_rft.spec.operator.config import JobLimits

NUM_ROWS = "invalid_n_examples"


def row_problems(
    limits: JobLimits, training: Path, validation: Path | None, samples: int | None = None
) -> list[Problem]:
    """Files with too few or too many rows; with `samples`, the draws of each row before training, too many rollouts."""
    found = []
    count = count_rows(training)
    if not limits.min_training_rows <= count <= limits.max_training_rows:
        allowed = f"{limits.min_training_rows:,} to {limits.max_training_rows:,}"
        found.append(_problem("training_file", count, allowed, training))
    if samples is not None and samples * count > limits.max_readiness_rollouts:
        message = f"{samples} draws of {count:,} rows are {samples * count:,} rollouts"
        message += f", but the operator's limit is {limits.max_readiness_rollouts:,}"
        remedy = "draw fewer samples or fewer rows, or ask the operator to raise jobs.max_readiness_rollouts"
        found.append(Problem("over_limit", "samples", message, remedy))
    if validation is not None and (count := count_rows(validation)) > limits.max_validation_rows:
        found.append(_problem("validation_file", count, f"at most {limits.max_validation_rows:,}", validation))
    return found


def resource_problems(limits: JobLimits, bundles: Sequence[Mapping[str, float]]) -> list[Problem]:
    """Cores or GPUs over the limit of a job. `bundles` are the job's, with Ray's names of resources."""
    found = []
    for kind, name, most in (("CPU", "cores", limits.max_cores), ("GPU", "GPUs", limits.max_gpus)):
        needed = sum(bundle.get(kind, 0.0) for bundle in bundles)
        if most is not None and needed > most:
            message = f"the job needs {needed:g} {name}, but the operator's limit is {most}"
            setting = "jobs.max_cores" if kind == "CPU" else "jobs.max_gpus"
            remedy = f"lower engines, learner_ranks or the resources of each, or ask the operator to raise {setting}"
            found.append(Problem("over_limit", "cluster", message, remedy))
    return found


def _problem(field: str, count: int, allowed: str, path: Path) -> Problem:
    message = f"holds {count:,} row{'s' * (count != 1)}, but a job must have {allowed}"
    return Problem(NUM_ROWS, field, message, "add or remove rows", path.name)
