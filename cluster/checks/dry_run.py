"""Dry run of a job's endpoints: calls each tool and grader once with example values, inside one session.

The dry run takes place before any engine starts, so that a wrong URL or token is found within seconds. A call times out
after the endpoint's `timeout_s`, but at most after ten minutes. If `timeout_s` is longer than ten minutes, a timeout is
only a warning, because the endpoint may still be working on the request.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from agent_rft.actors.endpoints.model_client import SchemasUnsupported
from agent_rft.actors.endpoints.network.address_guard import AddressGuard
from agent_rft.actors.endpoints.request_body import encode_json
from agent_rft.actors.endpoints.signing import Signer, create_signer
from agent_rft.actors.grading.grader_factory import FIELD as GRADER
from agent_rft.actors.grading.grader_factory import GRACE_S, HELD_OUT, grade_deadline_s
from agent_rft.actors.grading.grader_pool import GraderPool
from agent_rft.actors.tools.dispatcher import UNSUPPORTED_PART, Dispatcher, build_call_body
from agent_rft.actors.tools.tool_sessions import ToolSessions
from agent_rft.cluster.checks.endpoint_checks import SESSION, TOOLS
from agent_rft.cluster.checks.schema_examples import make_example_call, make_example_sample
from agent_rft.errors import Problem, RftError
from agent_rft.problems import is_warning
from agent_rft.spec.endpoints import MAX_TRIAL_CALL_S, SessionSpec, ToolSpec
from agent_rft.spec.graders import EndpointGrader, GraderSpec, limit_trial_grader
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.types import Task, ToolCall, ToolSchema

TRACE_ID = f"trace_dry_run_{secrets.token_hex(8)}"
"""Trace id of the trial calls. It differs in each process, so that servers do not deduplicate the calls."""
PROBE_TIMEOUT_S = 10.0
UNANSWERED = "unanswered_trial_call"
NO_SCHEMAS = "no_json_schema"
CODES = {"refused": "endpoint_refused", "redirect": "wrong_path", "forbidden_address": "forbidden_address"}
TOKEN_FIX = "write the complete value of the header, such as `Bearer ${NAME}`, where NAME is an environment variable"


async def dry_run_problems(
    reinforcement: Reinforcement, tasks: Sequence[Task], operator: OperatorConfig
) -> list[Problem]:
    """Call each tool and grader once, inside a session if the job has one, and return the problems.

    Each call may take as long as the endpoint's `timeout_s`, but at most ten minutes. Some problems are only warnings.
    """
    if reinforcement.session is None:
        return await _call_all(reinforcement, tasks, operator)
    return await _call_in_session(reinforcement.session, reinforcement, tasks, operator)


async def _call_all(reinforcement: Reinforcement, tasks: Sequence[Task], operator: OperatorConfig) -> list[Problem]:
    examples_by_tool: dict[str, tuple[ToolSchema, Task]] = {}
    for task in tasks:
        for tool in task.tools:
            examples_by_tool.setdefault(tool["function"]["name"], (tool, task))
    signer, notes = create_signer(reinforcement), list[Problem]()
    calls = [
        _try_tool(f"{TOOLS}[{i}]", tool, *examples_by_tool[tool.name], operator, signer)
        for i, tool in enumerate(reinforcement.tools)
        if tool.name in examples_by_tool
    ]
    calls.append(_try_grader(GRADER, reinforcement.grader, reinforcement, tasks[0], operator, notes))
    if (held_out := reinforcement.held_out_grader) is not None:
        without_guards = reinforcement.model_copy(update={"guards": ()})
        calls.append(_try_grader(HELD_OUT, held_out, without_guards, tasks[0], operator, notes))
    results = await asyncio.gather(*calls)
    return [*filter(None, results), *dict.fromkeys(notes)]


async def _call_in_session(
    spec: SessionSpec, reinforcement: Reinforcement, tasks: Sequence[Task], operator: OperatorConfig
) -> list[Problem]:
    """Start a session, make the calls in it, end it, and return the problems."""
    events: list[str] = []
    trial = spec.limit_to_trial()
    sessions = ToolSessions(trial, None, operator, on_message=events.append, signer=create_signer(reinforcement))
    try:
        await sessions.start(TRACE_ID, tasks[0].item)
        problems = await _call_all(reinforcement, tasks, operator)
    except RftError as error:
        fix = "make the endpoint answer with status 200 and any JSON when the session is ready"
        may_take_s, field = spec.timeout_s, f"{SESSION}.start_url"
        problems = [_failure_problem(error, "session_failed", field, f"{SESSION}.headers", fix, may_take_s)]
    finally:
        left = await sessions.close("dry_run", deadline_s=trial.timeout_s)
    failed = [kind for kind in sessions.stats()["errors"] if kind.startswith("end_")]
    if (left or failed) and all(is_warning(problem.code) for problem in problems):
        answered = f"the answer is {sessions.refused_end}" if sessions.refused_end else "the endpoint does not answer"
        message = events[0] if events else f"a session cannot be ended: {answered}"
        fix = "make the endpoint answer with status 200 and any JSON once the session is closed"
        problems.append(Problem("session_failed", f"{SESSION}.end_url", message, fix))
    return problems


async def _try_tool(
    field: str, tool: ToolSpec, schema: ToolSchema, task: Task, operator: OperatorConfig, signer: Signer | None
) -> Problem | None:
    dispatcher = Dispatcher([tool.limit_to_trial()], operator, signer=signer)
    call = make_example_call(schema)
    try:
        (result,) = await dispatcher.call_turn(TRACE_ID, task.item, [call])
        errors = dispatcher.stats()[tool.name]["errors"]
    except RftError as error:
        fix = 'make the tool answer {"output": "..."}'
        return _failure_problem(error, "tool_failed", f"{field}.server_url", f"{field}.headers", fix, tool.timeout_s)
    finally:
        await dispatcher.close()
    if UNSUPPORTED_PART in errors:
        fix = 'make the tool answer with text, such as {"output": "..."}'
        return Problem("tool_failed", f"{field}.server_url", result.output.removeprefix("Error: "), fix)
    if result.error is not None:
        path_error = await _find_path_error(tool, task.item, call, operator)
        if path_error is not None:
            return Problem("wrong_path", f"{field}.server_url", path_error, "fix the path of the URL")
    return None


async def _try_grader(
    field: str,
    grader: GraderSpec,
    reinforcement: Reinforcement,
    task: Task,
    operator: OperatorConfig,
    notes: list[Problem],
) -> Problem | None:
    """Grade an example once with `grader` and the guards; return the problem, and append warnings to `notes`."""

    def add_schema_warning(found: SchemasUnsupported) -> None:
        notes.append(Problem(NO_SCHEMAS, f"models.{found.model}", found.message, found.fix))

    guards = [guard.model_copy(update={"grader": limit_trial_grader(guard.grader)}) for guard in reinforcement.guards]
    pool = GraderPool(
        limit_trial_grader(grader),
        operator=operator.limit_to_trial(),
        guards=guards,
        signer=create_signer(reinforcement),
        on_no_schemas=add_schema_warning,
    )
    try:
        await pool.grade(make_example_sample(reinforcement, task), task.item, TRACE_ID)
    except RftError as error:
        fix = 'make the grader answer {"score": number} for any sample, including an empty sample'
        if field == HELD_OUT:  # rollouts would not fail, but would have no held-out grade
            fix = "fix the held-out grader, or remove it from the job"
        if reinforcement.response_format is None and "output_json" in str(error.details.get("path")):
            fix = "set response_format to a JSON schema: without a schema, samples have no output_json"
        graders = [grader, *(guard.grader for guard in reinforcement.guards)]
        may_take_s = max(grade_deadline_s(spec, operator) - GRACE_S for spec in graders)
        headers = f"{field}.headers" if isinstance(grader, EndpointGrader) else field
        return _failure_problem(error, "grader_failed", field, headers, fix, may_take_s)
    finally:
        await pool.close()
    return None


def _failure_problem(error: RftError, code: str, field: str, headers: str, fix: str, may_take_s: float) -> Problem:
    """Return the problem to report for a failed call. `fix` is used if `error` has no fix.

    `may_take_s` is the endpoint's own timeout, which may be longer than the timeout of the trial call.
    """
    kind = str(error.details.get("kind"))
    has_one_request = error.details.get("attempts") == 1  # it was accepted, and neither rejected nor lost
    if kind == "deadline" and has_one_request and may_take_s > MAX_TRIAL_CALL_S:
        message = (
            f"the trial call was not answered within {MAX_TRIAL_CALL_S:g} s, but the endpoint's timeout allows "
            f"{may_take_s:g} s"
        )
        return Problem(
            UNANSWERED, field, message, "check in the endpoint's log whether it is still working on the call"
        )
    if kind == "refused":
        return Problem(CODES[kind], headers, error.problem, f"{error.fix}; {TOKEN_FIX}")
    return Problem(CODES.get(kind, code), field, error.problem, error.fix or fix)


async def _find_path_error(
    tool: ToolSpec, item: dict[str, Any], call: ToolCall, operator: OperatorConfig
) -> str | None:
    """Return why the path of a tool's URL is probably wrong; None if it seems correct.

    A 404 alone does not prove that the path is wrong, because many tools answer 404 for a missing document. Therefore
    the call is sent to the tool's URL and to a path that does not exist. Then an empty object is sent to both URLs. If
    both URLs give the same 404 answers, the path is wrong.
    """
    url = URL(tool.server_url)
    missing_url = (url / "agent-rft-no-such-path").with_query(url.query)
    headers = CIMultiDict({"Content-Type": "application/json"})
    headers.update({name: value.get_secret_value() for name, value in tool.headers.items()})
    timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
    try:
        connector = AddressGuard(operator.allowed_destinations).make_connector(url)
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
            for body in (build_call_body(TRACE_ID, item, call), {}):
                answers = []
                for target in (url, missing_url):
                    async with session.post(target, data=encode_json(body), allow_redirects=False) as response:
                        text = await response.content.read(4096)
                        # Some servers repeat the unknown path in their answer.
                        answers.append((response.status, text.replace(target.raw_path.encode(), b"")))
                if answers[0][0] == 405:
                    return "the endpoint does not accept POST at this path (HTTP 405)"
                if answers[0][0] != 404 or answers[0] != answers[1]:
                    return None
    except (aiohttp.ClientError, TimeoutError):
        return None
    return "the endpoint gives the same answer at this path as at a path that does not exist (HTTP 404)"
