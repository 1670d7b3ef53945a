"""The operator's limits on a job: rows, rollouts, cores and GPUs."""

from __future__ import annotations

from pathlib import Path

from agent_rft.cluster.preflight.limits import resource_problems, row_problems
from agent_rft.spec.operator.config import JobLimits


def test_files_with_too_few_or_too_many_rows_are_refused(tmp_path: Path) -> None:
    training, validation = tmp_path / "train", tmp_path / "validation"
    training.write_text('{"a": 1}\n\n' * 3)
    validation.write_text("{}\n" * 5)
    limits = JobLimits(min_training_rows=4, max_training_rows=10, max_validation_rows=4)
    first, second = row_problems(limits, training, validation)
    assert (first.code, first.field) == ("invalid_n_examples", "training_file") and "3 rows" in first.message
    assert (second.code, second.field) == ("invalid_n_examples", "validation_file")
    assert row_problems(JobLimits(min_training_rows=3, max_validation_rows=5), training, validation) == []


def test_a_look_before_training_with_too_many_rollouts_is_refused(tmp_path: Path) -> None:
    training, limits = tmp_path / "train", JobLimits(min_training_rows=1, max_readiness_rollouts=1_000)
    training.write_text("{}\n" * 250)
    assert row_problems(limits, training, None) == row_problems(limits, training, None, 4) == []
    (problem,) = row_problems(limits, training, None, 5)
    assert problem.message == "5 samples of 250 rows are 1,250 rollouts, but the operator's limit is 1,000"
    assert (problem.code, problem.field) == ("over_limit", "samples") and "fewer samples" in problem.remedy


def test_more_cores_or_gpus_than_the_operator_allows_are_refused() -> None:
    bundles = [{"CPU": 2.0, "GPU": 1.0}, {"CPU": 3.0, "GPU": 1.0}]
    assert resource_problems(JobLimits(), bundles) == []
    assert resource_problems(JobLimits(max_cores=5, max_gpus=2), bundles) == []
    cores, gpus = resource_problems(JobLimits(max_cores=4, max_gpus=0), bundles)
    assert cores.message == "the job needs 5 cores, but the operator's limit is 4"
    assert gpus.message == "the job needs 2 GPUs, but the operator's limit is 0"
    assert (cores.code, cores.field) == ("over_limit", "cluster") and "jobs.max_cores" in cores.remedy
