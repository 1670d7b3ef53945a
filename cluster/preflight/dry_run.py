"""First calls, before an engine starts: each tool and the graders are called once, with values made from schemas, and
one session is opened and ended.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from urllib.parse import urlsplit

import aiohttp

from actors.endpoints.address_guard import Guard
from actors.endpoints.client import REMEDIES
from actors.grading.factory import FIELD as GRADER
from actors.grading.factory import HELD_OUT
from actors.grading.pool import GraderPool
from actors.tools.dispatcher import Dispatcher
from actors.tools.sessions import SessionBook
from cluster.preflight.examples import example_call, example_sample
from cluster.preflight.form_check import SESSION, TOOLS
from trainer.errors import Problem, RftError
from trainer.spec.endpoints import SessionSpec, ToolSpec
from trainer.spec.job import Reinforcement
from trainer.spec.operator import Operator
from trainer.types import Task, ToolSchema

TRACE_ID = f"trace_dry_run_{secrets.token_hex(8)}"
"""Another one for each check: to a server that remembers calls by their keys, the same one would be an old call."""
PROBE_TIMEOUT_S = 10.0
CODES = {"refused": "endpoint_refused", "redirect": "wrong_path", "forbidden_address": "forbidden_address"}
TOKEN_REMEDY = "put the token that it wants into `headers` (as ${NAME}, from the environment)"


async def dry_run_problems(reinforcement: Reinforcement, tasks: Sequence[Task], operator: Operator) -> list[Problem]:
    """What a first call of each tool and of the grader says, within a session of their own where the job has one. Each
    may take what its `timeout_s` allows.
    """
    if reinforcement.session is None:
        return await _first_calls(reinforcement, tasks, operator)
    return await _in_a_session(reinforcement.session, reinforcement, tasks, operator)


async def _first_calls(reinforcement: Reinforcement, tasks: Sequence[Task], operator: Operator) -> list[Problem]:
    offered: dict[str, tuple[ToolSchema, Task]] = {}
    for task in tasks:
        for tool in task.tools:
            offered.setdefault(tool["function"]["name"], (tool, task))
    calls = [
        _try_tool(f"{TOOLS}[{i}]", tool, *offered[tool.name], operator)
        for i, tool in enumerate(reinforcement.tools)
        if tool.name in offered
    ]
    results = await asyncio.gather(*calls, _try_grader(reinforcement, tasks[0], operator))
    return [problem for problem in results if problem is not None]


async def _in_a_session(
    spec: SessionSpec, reinforcement: Reinforcement, tasks: Sequence[Task], operator: Operator
) -> list[Problem]:
    """Without a session the tools cannot be tried: they may know no rollout without one."""
    told: list[str] = []
    book = SessionBook(spec, None, operator, tell=told.append)
    try:
        await book.start(TRACE_ID, tasks[0].item)
        problems = await _first_calls(reinforcement, tasks, operator)
    except RftError as error:
        wanted = "answer any JSON with status 200 when the session can be used"
        problems = [_failed(error, "session_failed", f"{SESSION}.start_url", f"{SESSION}.headers", wanted)]
    finally:
        left = await book.close("dry_run", deadline_s=spec.timeout_s)
    unheard = [kind for kind in book.stats()["errors"] if kind.startswith("end_")]
    if (left or unheard) and not problems:
        said = unheard[0].removeprefix("end_") if unheard else "deadline"
        message = told[0] if told else f"a session cannot be ended: its end is answered with HTTP {said}"
        remedy = "answer any JSON with status 200 once the end is noted"
        problems = [Problem("session_failed", f"{SESSION}.end_url", message, remedy)]
    return problems


async def _try_tool(field: str, tool: ToolSpec, schema: ToolSchema, task: Task, operator: Operator) -> Problem | None:
    dispatcher = Dispatcher([tool], operator)
    try:
        (result,) = await dispatcher.call_turn(TRACE_ID, task.item, [example_call(schema)])
    except RftError as error:
        return _failed(error, "tool_failed", f"{field}.server_url", f"{field}.headers", 'answer {"output": "..."}')
    finally:
        await dispatcher.close()
    if result.error is not None:
        mistake = await _path_mistake(tool, operator)
        if mistake is not None:
            return Problem("wrong_path", f"{field}.server_url", mistake, "mend the path of the URL")
    return None


async def _try_grader(reinforcement: Reinforcement, task: Task, operator: Operator) -> Problem | None:
    pool = GraderPool.of(reinforcement, operator)
    try:
        grade = await pool.grade(example_sample(reinforcement, task), task.item, TRACE_ID)
    except RftError as error:
        wanted = 'answer {"score": number} to any try, an empty answer too'
        if reinforcement.response_format is None and "output_json" in str(error.details.get("path")):
            wanted = "set response_format to a JSON schema: output_json is there only then"
        return _failed(error, "grader_failed", GRADER, f"{GRADER}.headers", wanted)
    finally:
        await pool.close()
    if grade.held_out_error:  # no rollout would fail with it, but it would say nothing
        remedy = "make it answer, or leave it out"
        return Problem("grader_failed", HELD_OUT, grade.held_out_error, remedy)
    return None


def _failed(error: RftError, code: str, field: str, headers: str, wanted: str) -> Problem:
    """A failed call as a problem; what to do about it goes by the kind of its failure."""
    kind = str(error.details.get("kind"))
    if kind == "refused":
        return Problem(CODES[kind], headers, error.message, TOKEN_REMEDY)
    remedy = REMEDIES.get(kind, f"make it {wanted}" if wanted.startswith("answer") else wanted)
    message = error.message.removesuffix(remedy).rstrip("; :")
    return Problem(CODES.get(kind, code), field, message, remedy)


async def _path_mistake(tool: ToolSpec, operator: Operator) -> str | None:
    """Why nobody seems to be at the tool's path. A 404 alone says little: many tools say so of a missing document. It
    is a wrong path where one that certainly does not exist gets the same answer.
    """
    url = urlsplit(tool.server_url)
    nowhere = url._replace(path=url.path.rstrip("/") + "/agent-rft-no-such-path")
    headers = {name: value.get_secret_value() for name, value in tool.headers.items()}
    timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
    answers = []
    try:
        connector = Guard(operator.allowed_networks).connector()
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
            for place in (url, nowhere):
                async with session.post(place.geturl(), json={}, allow_redirects=False) as response:
                    body = await response.content.read(4096)
                    # Some servers name the path that they do not know.
                    answers.append((response.status, body.replace(place.path.encode(), b"")))
    except (aiohttp.ClientError, TimeoutError):
        return None
    if answers[0][0] == 405:
        return "it takes no POST at this path (HTTP 405)"
    if answers[0][0] == 404 and answers[0] == answers[1]:
        return "it answers as it does to a path that does not exist (HTTP 404)"
    return None
