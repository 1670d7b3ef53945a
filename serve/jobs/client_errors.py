"""Errors of failed jobs as API clients see them: a code and a message, never the output of a process."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from agent_rft.cluster.checks.limit_checks import NUM_ROWS
from agent_rft.cluster.records.redaction import replace_substrings, to_plain_json
from agent_rft.errors import InvalidJob, Problem, RftError, UserError
from agent_rft.serve.stores.job_tables import JobError
from agent_rft.spec.job import FILES

CREATE_AGAIN = "upload the corrected file, and create the job again with the new file's id"
OF_ROWS = frozenset({"empty_file", "invalid_n_examples", "json_array"})
"""Codes of problems that concern all rows of a file, not a single line."""
REUPLOAD = "upload the file again as UTF-8 text, and create the job again with the new file's id"
TEMPLATE = "set model_options.chat_template to the text of a template that renders tools, calls and results"
OTHER_MODEL = "use another model (GET /v1/models), or ask the server's operator"
ASK_OPERATOR = "change the request, or ask the server's operator"

FIXES: Mapping[str, str] = {
    "calls_not_parsed": TEMPLATE,
    "forbidden_address": "use an address that the server may call, or ask the server's operator to allow this address",
    "invalid_signing_secret": "write whsec_ followed by 24 to 64 random bytes in base64",
    "missing_file": REUPLOAD,
    "missing_model": OTHER_MODEL,
    "missing_variable": "write the value itself: the server does not substitute variables",
    "no_engine": ASK_OPERATOR,
    "no_free_resources": "try again later, or ask the server's operator",
    "small_shared_memory": ASK_OPERATOR,
    "not_a_model": OTHER_MODEL,
    "adapter_mismatch": "set `lora` to match the model's adapter, or use a full model",
    "template_error": TEMPLATE,
    "tools_not_in_prompt": (
        f"{TEMPLATE}; or set model_options.tools_in_prompt to false if the model needs no tool descriptions"
    ),
    "unreadable_file": REUPLOAD,
    "unknown_model": "use a model that the message lists, or ask the server's operator to add the requested model",
}
"""Fixes for API clients by problem code. They replace fixes that name local files or commands."""


def replace_fix(problem: Problem) -> Problem:
    """Return the problem, with its fix replaced by a fix that an API client can apply."""
    fix = FIXES.get(problem.code, problem.fix)
    if problem.code not in FIXES and (problem.line is not None or problem.code in OF_ROWS):
        fix = f"{fix}; {CREATE_AGAIN}"
    return replace(problem, fix=fix)


MAX_MESSAGE_CHARS = 2_000
OPERATORS = frozenset({"no_sandbox", "corrupt_weights"})
"""Codes of problems that only the operator can fix."""


def make_job_error(problems: Sequence[Problem]) -> JobError:
    """Return the error of a job with these problems.

    The error describes the first problem, and its message counts the others. A problem with the number of rows comes
    last, because another problem may be its cause.
    """
    first = min(problems, key=lambda problem: problem.code == NUM_ROWS)
    code = first.code
    if first.field.startswith(FILES) and code != NUM_ROWS:
        code = f"invalid_{_find_file_field(first)}"
    param = _find_file_field(first) if first.field.startswith(FILES) else first.field
    rest = f" (the job's events list {len(problems) - 1} more)" if len(problems) > 1 else ""
    message = f"{describe_problem(first)}{rest}"
    return JobError(code, message[:MAX_MESSAGE_CHARS], None if param.startswith("--") else param)


def describe_problem(problem: Problem) -> str:
    """Return a problem as one line: `training_file, line 3: is not valid JSON; write one JSON object per line`."""
    return str(to_plain_json(f"{problem.location}: {problem.message}; {problem.fix}"))


def convert_error(error: RftError, job_id: str, names: Mapping[str, str]) -> JobError:
    """Return the error of a job that failed while it ran; `names` maps paths to the names that clients see."""
    if isinstance(error, InvalidJob) and error.problems:
        return make_job_error([hide_details(problem, job_id, names) for problem in error.problems])
    code = "user_error" if isinstance(error, UserError) else "training_failed"
    message = str(replace_substrings(to_plain_json(error.public_message), names))
    if error.public_message == error.message:
        return JobError(code, message[:MAX_MESSAGE_CHARS])
    return JobError(code, add_log_hint(message[:MAX_MESSAGE_CHARS], job_id), log=str(to_plain_json(error.message)))


def hide_details(problem: Problem, job_id: str | None, names: Mapping[str, str]) -> Problem:
    """Return the problem as clients see it. If only the operator can fix the problem, clients see only its code.

    `names` maps paths to the names that clients see. `job_id` is None if there is no job yet.
    """
    if problem.field.startswith("--") or problem.code in OPERATORS:
        more = "" if job_id is None else f", who can see details with `agent-rft jobs log {job_id}`"
        fix = f"ask its operator{more}"
        return replace(problem, message=f"the server cannot run the job now ({problem.code})", fix=fix)
    problem = replace_fix(problem)
    message, fix = replace_substrings(problem.message, names), replace_substrings(problem.fix, names)
    return replace(problem, message=message, fix=fix, file=None)


def add_log_hint(message: str, job_id: str) -> str:
    return f"{message}; an admin of the server can see details with `agent-rft jobs log {job_id}`"


def describe_exit(exit_code: int | None) -> str:
    """Return a clause that describes how a process ended, such as `its exit code is unknown`.

    A shell reports signal N as exit code 128 + N.
    """
    if exit_code is None:
        return "its exit code is unknown"
    number = -exit_code if exit_code < 0 else exit_code - 128
    with suppress(ValueError):
        name = signal.Signals(number).name
        memory = ", usually because its node ran out of memory" if number == signal.SIGKILL else ""
        return f"{name} ended it{memory}"
    return f"it ended with exit code {exit_code}"


def _find_file_field(problem: Problem) -> str:
    return next(name for name in FILES if problem.field.startswith(name))
