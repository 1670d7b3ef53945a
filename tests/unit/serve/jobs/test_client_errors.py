"""The errors of failed jobs, with the codes of the API."""

from __future__ import annotations

import pytest

from agent_rft.errors import EndpointRefused, InvalidJob, Problem, RftError, TrainingHalted, UserError
from agent_rft.serve.jobs.client_errors import (
    OTHER_MODEL,
    convert_error,
    describe_exit,
    describe_problem,
    hide_details,
    make_job_error,
)
from agent_rft.serve.stores.job_tables import JobError


def test_a_file_problem_names_the_file_the_line_and_the_reason() -> None:
    problem = Problem("invalid_row", "validation_file.messages", "has no role", "give one", "file-1", 7)
    error = make_job_error([problem])
    assert (error.code, error.param) == ("invalid_validation_file", "validation_file")
    assert error.message == "validation_file.messages, line 7: has no role; give one"


def test_other_problems_keep_their_codes_and_command_line_options_are_not_a_param() -> None:
    refused = Problem("endpoint_refused", "method.reinforcement.tools[0].headers", "answers 401", "fix the token")
    assert (make_job_error([refused]).code, make_job_error([refused]).param) == ("endpoint_refused", refused.field)
    full = Problem("disk_full", "--runs", "1 MiB is free", "free some space")
    assert (make_job_error([full]).code, make_job_error([full]).param) == ("disk_full", None)


def test_a_broken_line_explains_more_than_the_row_count() -> None:
    rows = Problem("invalid_n_examples", "training_file", "holds 3 rows", "add rows", "train")
    assert make_job_error([rows]).code == "invalid_n_examples"
    broken = Problem("broken_json", "training_file", "is not valid JSON", "fix it", "train", 2)
    assert make_job_error([rows, broken]).code == "invalid_training_file"


def test_the_error_of_a_failed_run_tells_user_errors_from_training_failures() -> None:
    assert told(EndpointRefused("https://t.example/?k=secret answered 401")).code == "user_error"
    assert "secret" not in told(EndpointRefused("https://t.example/?k=secret answered 401")).message
    assert told(TrainingHalted("no signal")) == JobError("training_failed", "no signal")
    problem = Problem("too_few_resources", "cluster", "wants 8 GPUs", "lower it")
    assert told(InvalidJob("no place", [problem])).code == "too_few_resources"


# -- what clients are not told -----------------------------------------------------------------------------------------

NAMES = {"/state": "the server's folder", "/state/runs/ftjob-1": "the run", "/models/base": "gpt-5"}


def told(error: RftError) -> JobError:
    return convert_error(error, "ftjob-1", NAMES)


def test_an_error_that_quotes_a_program_is_cut_for_clients_and_whole_for_admins() -> None:
    error = told(
        TrainingHalted("engine-0 could not be started: OSError: /dev/x", public_message="engine-0 could not be started")
    )
    more = "an admin of the server can see details with `agent-rft jobs log ftjob-1`"
    assert error.message == f"engine-0 could not be started; {more}" and error.log.endswith("OSError: /dev/x")


def test_the_servers_paths_have_names() -> None:
    assert told(UserError("/state/runs/ftjob-1/checkpoints/step-2 is damaged")).message == (
        "the run/checkpoints/step-2 is damaged"
    )
    problem = Problem("not_a_model", "model", "/models/base has no config.json", "see /state/x", "/state/files/1", 3)
    expected = Problem("not_a_model", "model", "gpt-5 has no config.json", OTHER_MODEL, None, 3)
    assert hide_details(problem, "ftjob-1", NAMES) == expected


def test_fixes_are_what_a_client_of_the_api_can_do() -> None:
    broken = Problem("invalid_row", "training_file", "messages is missing", "add messages", "train.jsonl", 1, "1-20")
    assert describe_problem(hide_details(broken, "ftjob-1", {})) == (
        "training_file, rows 1-20: messages is missing; add messages; upload the corrected file, and create the job "
        "again with the new file's id"
    )
    gone = Problem("missing_file", "test_file", "there is no file", "fix the path (it is relative to the job file)")
    assert hide_details(gone, "ftjob-1", {}).fix.startswith("upload the file again")
    parser = Problem("calls_not_parsed", "model_options.tool_parser", "no parser", "`agent-rft models template FOLDER`")
    assert "agent-rft" not in hide_details(parser, "ftjob-1", {}).fix


def test_of_a_problem_of_the_operator_clients_learn_its_code_only() -> None:
    problem = Problem("no_cluster", "--address", "10.0.0.1:6379: Traceback ...", "give HOST:PORT")
    error = told(InvalidJob("no cluster", [problem]))
    assert (error.code, error.param) == ("no_cluster", None)
    assert error.message == (
        "--address: the server cannot run the job now (no_cluster); ask its operator, who can see details with "
        "`agent-rft jobs log ftjob-1`"
    )


def test_what_a_sandbox_wrote_is_no_message_for_clients() -> None:
    field = "method.reinforcement.grader"
    problem = Problem("no_sandbox", field, "no sandbox (namespaces: /opt/x: denied)", "run /opt/x")
    told = hide_details(problem, "ftjob-1", {})
    assert (told.code, told.field) == (problem.code, field) and "/opt/x" not in str(told)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (None, "its exit code is unknown"),
        (1, "it ended with exit code 1"),
        (137, "SIGKILL ended it, usually because its node ran out of memory"),
        (-11, "SIGSEGV ended it"),
        (255, "it ended with exit code 255"),
    ],
)
def test_how_a_process_ended_is_told(code: int | None, sentence: str) -> None:
    assert describe_exit(code) == sentence
