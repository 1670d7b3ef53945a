"""The errors of failed jobs, with the codes of the API."""

from __future__ import annotations

from cluster.jobs.problems import error_of, wire_error
from trainer.errors import EndpointRefused, Halted, InvalidJob, Problem


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


def test_a_broken_line_explains_more_than_the_row_count() -> None:
    rows = Problem("invalid_n_examples", "training_file", "holds 3 rows", "add rows", "train")
    assert wire_error([rows]).code == "invalid_n_examples"
    broken = Problem("broken_json", "training_file", "is not valid JSON", "fix it", "train", 2)
    assert wire_error([rows, broken]).code == "invalid_training_file"


def test_the_error_of_a_failed_run_tells_user_errors_from_training_failures() -> None:
    assert error_of(EndpointRefused("https://t.example/?k=secret answered 401")).code == "user_error"
    assert "secret" not in error_of(EndpointRefused("https://t.example/?k=secret answered 401")).message
    assert error_of(Halted("no signal")).code == "training_failed"
    problem = Problem("too_few_resources", "cluster", "wants 8 GPUs", "lower it")
    assert error_of(InvalidJob("no place", [problem])).code == "too_few_resources"
