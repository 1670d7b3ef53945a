"""The operator's limits on a job: rows, rollouts, cores and GPUs."""

from __future__ import annotations

from pathlib import Path

from agent_rft.cluster.checks.limit_checks import check_resource_limits, check_row_limits
from agent_rft.spec.operator.operator_config import JobLimits


def test_files_with_too_few_or_too_many_rows_are_refused(tmp_path: Path) -> None:
    training, validation = tmp_path / "train", tmp_path / "validation"
    training.write_text('{"a": 1}\n\n' * 3)
    validation.write_text("{}\n" * 5)
    limits = JobLimits(min_training_rows=4, max_training_rows=10, max_validation_rows=4)
    first, second = check_row_limits(limits, training, validation)
    assert (first.code, first.field) == ("invalid_n_examples", "training_file") and "3 rows" in first.message
    assert (second.code, second.field) == ("invalid_n_examples", "validation_file")
    assert check_row_limits(JobLimits(min_training_rows=3, max_validation_rows=5), training, validation) == []


def test_a_look_before_training_with_too_many_rollouts_is_refused(tmp_path: Path) -> None:
    training, limits = tmp_path / "train", JobLimits(min_training_rows=1, max_readiness_rollouts=1_000)
    training.write_text("{}\n" * 250)
    assert check_row_limits(limits, training, None) == check_row_limits(limits, training, None, 4) == []
    (problem,) = check_row_limits(limits, training, None, 5)
    assert problem.message == "5 samples of each of 250 rows are 1,250 rollouts, but the operator's limit is 1,000"
    assert (problem.code, problem.field) == ("over_limit", "samples") and "fewer samples" in problem.fix


def test_more_cores_or_gpus_than_the_operator_allows_are_refused() -> None:
    bundles = [{"CPU": 2.0, "GPU": 1.0}, {"CPU": 3.0, "GPU": 1.0}]
    assert check_resource_limits(JobLimits(), bundles) == []
    assert check_resource_limits(JobLimits(max_cores=5, max_gpus=2), bundles) == []
    cores, gpus = check_resource_limits(JobLimits(max_cores=4, max_gpus=0), bundles)
    assert cores.message == "the job needs 5 cores, but the operator's limit is 4"
    assert gpus.message == "the job needs 2 GPUs, but the operator's limit is 0"
    assert (cores.code, cores.field) == ("over_limit", "cluster") and "jobs.max_cores" in cores.fix
