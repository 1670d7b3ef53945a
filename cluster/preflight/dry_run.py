"""The dry run of a job's endpoints: each tool and grader is called once with example values, inside one session.

It runs before any engine starts, so that a wrong URL or token costs seconds.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

import aiohttp
from yarl import URL

from actors.endpoints.address_guard import Guard
from actors.endpoints.signing import Signer, signer_of
from actors.grading.factory import FIELD as GRADER
from actors.grading.factory import HELD_OUT
from actors.grading.pool import GraderPool
from actors.tools.dispatcher import Dispatcher, call_body
from actors.tools.sessions import SessionBook
from cluster.preflight.examples import example_call, example_sample
from cluster.preflight.form_check import SESSION, TOOLS
from trainer.errors import Problem, RftError
from trainer.spec.endpoints import SessionSpec, ToolSpec
from trainer.spec.job import Reinforcement
from trainer.spec.operator.config import Operator
from trainer.types import Task, ToolCall, ToolSchema

TRACE_ID = f"trace_dry_run_{secrets.token_hex(8)}"
"""New in each process: a server that deduplicates calls by their key must not take this one for an old call."""
PROBE_TIMEOUT_S = 10.0
CODES = {"refused": "endpoint_refused", "redirect": "wrong_path", "forbidden_address": "forbidden_address"}
TOKEN_REMEDY = (
    "put its token into `headers`: all of the value, such as `Bearer ${NAME}`, with NAME from the environment"
)


async def dry_run_problems(reinforcement: Reinforcement, tasks: Sequence[Task], operator: Operator) -> list[Problem]:
    """The problems that one call of each tool and of the graders shows, inside a session if the job has one.

    Each call may take as long as its `timeout_s` allows.
    """
    if reinforcement.session is None:
        return await _first_calls(reinforcement, tasks, operator)
    return await _in_a_session(reinforcement.session, reinforcement, tasks, operator)


async def _first_calls(reinforcement: Reinforcement, tasks: Sequence[Task], operator: Operator) -> list[Problem]:
    offered: dict[str, tuple[ToolSchema, Task]] = {}
    for task in tasks:
        for tool in task.tools:
            offered.setdefault(tool["function"]["name"], (tool, task))
    signer = signer_of(reinforcement)
    calls = [
        _try_tool(f"{TOOLS}[{i}]", tool, *offered[tool.name], operator, signer)
        for i, tool in enumerate(reinforcement.tools)
        if tool.name in offered
    ]
    results = await asyncio.gather(*calls, _try_grader(reinforcement, tasks[0], operator))
    return [problem for problem in results if problem is not None]


async def _in_a_session(
    spec: SessionSpec, reinforcement: Reinforcement, tasks: Sequence[Task], operator: Operator
) -> list[Problem]:
    """The problems of a session and of the calls in it; without a session, the tools cannot be called."""
    events: list[str] = []
    book = SessionBook(spec, None, operator, tell=events.append, signer=signer_of(reinforcement))
    try:
        await book.start(TRACE_ID, tasks[0].item)
        problems = await _first_calls(reinforcement, tasks, operator)
    except RftError as error:
        wanted = "make it answer any JSON with status 200 when the session is ready"
        problems = [_failed(error, "session_failed", f"{SESSION}.start_url", f"{SESSION}.headers", wanted)]
    finally:
        left = await book.close("dry_run", deadline_s=spec.timeout_s)
    failed = [kind for kind in book.stats()["errors"] if kind.startswith("end_")]
    if (left or failed) and not problems:
        kind = failed[0].removeprefix("end_") if failed else "deadline"
        message = events[0] if events else f"a session cannot be ended: the request is answered with HTTP {kind}"
        remedy = "make it answer any JSON with status 200 once the session is closed"
        problems = [Problem("session_failed", f"{SESSION}.end_url", message, remedy)]
    return problems


async def _try_tool(
    field: str, tool: ToolSpec, schema: ToolSchema, task: Task, operator: Operator, signer: Signer | None
) -> Problem | None:
    dispatcher = Dispatcher([tool], operator, signer=signer)
    call = example_call(schema)
    try:
        (result,) = await dispatcher.call_turn(TRACE_ID, task.item, [call])
    except RftError as error:
        return _failed(
            error, "tool_failed", f"{field}.server_url", f"{field}.headers", 'make it answer {"output": "..."}'
        )
    finally:
        await dispatcher.close()
    if result.error is not None:
        mistake = await _path_mistake(tool, task.item, call, operator)
        if mistake is not None:
            return Problem("wrong_path", f"{field}.server_url", mistake, "fix the path of the URL")
    return None


async def _try_grader(reinforcement: Reinforcement, task: Task, operator: Operator) -> Problem | None:
    pool = GraderPool.of(reinforcement, operator)
    try:
        grade = await pool.grade(example_sample(reinforcement, task), task.item, TRACE_ID)
    except RftError as error:
        wanted = 'make it answer {"score": number} for any sample, also for an empty one'
        if reinforcement.response_format is None and "output_json" in str(error.details.get("path")):
            wanted = "set response_format to a JSON schema: without it there is no output_json"
        return _failed(error, "grader_failed", GRADER, f"{GRADER}.headers", wanted)
    finally:
        await pool.close()
    if grade.held_out_error:  # rollouts would not fail, but there would be no held-out grade
        remedy = "fix it, or leave it out"
        return Problem("grader_failed", HELD_OUT, grade.held_out_error, remedy)
    return None


def _failed(error: RftError, code: str, field: str, headers: str, wanted: str) -> Problem:
    """The problem of a failed call, with the remedy of its kind of failure, by default `wanted`."""
    kind = str(error.details.get("kind"))
    if kind == "refused":
        return Problem(CODES[kind], headers, error.message, TOKEN_REMEDY)
    return Problem(CODES.get(kind, code), field, error.problem, error.remedy or wanted)


async def _path_mistake(tool: ToolSpec, item: dict[str, Any], call: ToolCall, operator: Operator) -> str | None:
    """Why the path of a tool's URL looks wrong; None if it does not.

    A 404 alone is not enough, since many tools answer so for a missing document. The path is wrong if a path that
    certainly does not exist gets the same answers, to the call and to an empty body.
    """
    url = URL(tool.server_url)
    nowhere = (url / "agent-rft-no-such-path").with_query(url.query)
    headers = {name: value.get_secret_value() for name, value in tool.headers.items()}
    timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
    try:
        connector = Guard(operator.reachable).connector(url)
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
            for body in (call_body(TRACE_ID, item, call), {}):
                answers = []
                for target in (url, nowhere):
                    async with session.post(target, json=body, allow_redirects=False) as response:
                        text = await response.content.read(4096)
                        # Some servers repeat the unknown path in their answer.
                        answers.append((response.status, text.replace(target.raw_path.encode(), b"")))
                if answers[0][0] == 405:
                    return "it does not accept POST at this path (HTTP 405)"
                if answers[0][0] != 404 or answers[0] != answers[1]:
                    return None
    except (aiohttp.ClientError, TimeoutError):
        return None
    return "it answers as it does to a path that does not exist (HTTP 404)"
