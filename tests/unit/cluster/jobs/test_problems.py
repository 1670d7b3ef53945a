"""The errors of failed jobs, with the codes of the API."""

from __future__ import annotations

from pathlib import Path

from cluster.jobs.problems import error_of, resource_problems, row_problems, wire_error
from trainer.errors import EndpointRefused, Halted, InvalidJob, Problem
from trainer.spec.operator import JobLimits


def test_a_file_problem_names_the_file_the_line_and_the_reason() -> None:
    problem = Problem("invalid_row", "validation_file.messages", "has no role", "give one", "file-1", 7)
    error = wire_error([problem])
    assert (error.code, error.param) == ("invalid_validation_file", "validation_file")
    assert error.message == "validation_file.messages, line 7: has no role; give one"


def test_other_problems_keep_their_codes_and_command_line_options_are_not_a_param() -> None:
    refused = Problem("endpoint_refused", "method.reinforcement.tools[0].headers", "answers 401", "fix the token")
    assert (wire_error([refused]).code, wire_error([refused]).param) == ("endpoint_refused", refused.field)
    full = Problem("disk_full", "--runs", "1 MiB is free", "free some space")
    assert (wire_error([full]).code, wire_error([full]).param) == ("disk_full", None)


def test_a_files_number_of_rows_has_limits(tmp_path: Path) -> None:
    training, validation = tmp_path / "train", tmp_path / "validation"
    training.write_text('{"a": 1}\n\n' * 3)
    validation.write_text("{}\n" * 5)
    limits = JobLimits(min_training_rows=4, max_training_rows=10, max_validation_rows=4)
    first, second = row_problems(limits, training, validation)
    assert (first.code, first.field) == ("invalid_n_examples", "training_file") and "3 rows" in first.message
    assert (second.code, second.field) == ("invalid_n_examples", "validation_file")
    assert row_problems(JobLimits(min_training_rows=3, max_validation_rows=5), training, validation) == []
    assert wire_error([first]).code == "invalid_n_examples"
    broken = Problem("broken_json", "training_file", "is not valid JSON", "fix it", "train", 2)
    assert wire_error([first, broken]).code == "invalid_training_file", "a broken line explains more than the row count"


def test_what_a_job_takes_has_the_operators_limits() -> None:
    bundles = [{"CPU": 2.0, "GPU": 1.0}, {"CPU": 3.0, "GPU": 1.0}]
    assert resource_problems(JobLimits(), bundles) == []
    assert resource_problems(JobLimits(max_cores=5, max_gpus=2), bundles) == []
    cores, gpus = resource_problems(JobLimits(max_cores=4, max_gpus=0), bundles)
    assert cores.message == "the job wants 5 cores, but the operator lets a job take 4"
    assert gpus.message == "the job wants 2 GPUs, but the operator lets a job take 0"
    assert (cores.code, cores.field) == ("over_limit", "cluster") and "jobs.max_cores" in cores.remedy


def test_the_error_of_a_failed_run_tells_user_errors_from_training_failures() -> None:
    assert error_of(EndpointRefused("https://t.example/?k=secret answered 401")).code == "user_error"
    assert "secret" not in error_of(EndpointRefused("https://t.example/?k=secret answered 401")).message
    assert error_of(Halted("no signal")).code == "training_failed"
    problem = Problem("too_few_resources", "cluster", "wants 8 GPUs", "lower it")
    assert error_of(InvalidJob("no place", [problem])).code == "too_few_resources"
