"""The trial calls of the check: they end after ten minutes, which is only a warning if the endpoint may take longer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_rft.cluster.checks.dry_run import dry_run_problems
from agent_rft.errors import Problem
from agent_rft.spec.operator.operator_config import ModelEndpoint
from agent_rft.types import ToolSchema
from tests.support.builders import EXACT, job, task
from tests.support.fakes_http import (
    LOCAL,
    FakeEndpoint,
    MovableLoop,
    Received,
    hangs,
    in_movable_time,
    until,
)
from tests.support.job_case import Case

BUILD: ToolSchema = {"type": "function", "function": {"name": "build", "parameters": {"type": "object"}}}
METHOD = "method.reinforcement"
HELD_OUT = f"{METHOD}.held_out_grader"
TOOL, GRADER, SESSION = f"{METHOD}.tools[0].server_url", f"{METHOD}.grader", f"{METHOD}.session.start_url"


async def _after_ten_minutes(loop: MovableLoop, check: Coroutine[Any, Any, Any], server: FakeEndpoint) -> Any:
    """The result of a check whose only call `server` does not answer."""
    checking = asyncio.ensure_future(check)
    await until(lambda: server.open_now == 1, within_s=30)
    loop.move(590)
    await asyncio.sleep(0.01)
    assert not checking.done()
    loop.move(11)
    return await checking


@pytest.mark.parametrize(
    ("hanging", "timeout_s", "code", "field"),
    [
        ("tool", 18_000, "unanswered_trial_call", TOOL),
        ("tool", 600, "tool_failed", TOOL),
        ("grader", 18_000, "unanswered_trial_call", GRADER),
        ("grader", 600, "grader_failed", GRADER),
        ("multi", 18_000, "unanswered_trial_call", GRADER),
        ("guard", 18_000, "unanswered_trial_call", GRADER),
        ("judge", 18_000, "unanswered_trial_call", GRADER),
        ("judge", 600, "grader_failed", GRADER),
        ("held out", 18_000, "unanswered_trial_call", HELD_OUT),
        ("held out", 600, "grader_failed", HELD_OUT),
        ("session", 18_000, "unanswered_trial_call", SESSION),
        ("session", 600, "session_failed", SESSION),
    ],
)
def test_a_trial_call_ends_after_ten_minutes(hanging: str, timeout_s: float, code: str, field: str) -> None:
    async def test(loop: MovableLoop) -> None:
        async with FakeEndpoint(hangs) as slow:
            endpoint = {"type": "endpoint", "url": slow.url, "timeout_s": timeout_s}
            changes: dict[str, dict[str, Any]] = {
                "tool": {"tools": [{"name": "build", "server_url": slow.url, "timeout_s": timeout_s}]},
                "grader": {"grader": endpoint},
                "multi": {"grader": {"type": "multi", "graders": {"a": endpoint}, "calculate_output": "a"}},
                "guard": {"guards": [{"name": "safe", "grader": endpoint}]},
                "held out": {"held_out_grader": endpoint},
                "judge": {"grader": {"type": "score_model", "model": "j", "input": [{"role": "user", "content": "?"}]}},
                "session": {"session": {"start_url": slow.url, "timeout_s": timeout_s}},
            }
            models = {"j": ModelEndpoint(base_url=slow.url, timeout_s=timeout_s)}
            operator = LOCAL.model_copy(update={"models": models})
            rows = [task(tools=[BUILD], reference_answer="")]
            check = dry_run_problems(job(changes[hanging]).reinforcement, rows, operator)
            problems: list[Problem] = await _after_ten_minutes(loop, check, slow)
        assert [(problem.code, problem.field) for problem in problems] == [(code, field)]
        if code == "unanswered_trial_call":
            assert "not answered within 600 s, but the endpoint's timeout allows 18000 s" in problems[0].message

    in_movable_time(test)


def test_a_long_tool_that_refuses_calls_for_ten_minutes_is_a_problem() -> None:
    async def refuses_then_hangs(request: Received) -> web.StreamResponse:
        return web.Response(status=503) if request.number == 1 else await hangs(request)

    async def test(loop: MovableLoop) -> None:
        async with FakeEndpoint(refuses_then_hangs) as slow:
            reinforcement = {"tools": [{"name": "build", "server_url": slow.url, "timeout_s": 18_000}]}
            check = dry_run_problems(
                job(reinforcement).reinforcement, [task(tools=[BUILD], reference_answer="")], LOCAL
            )
            checking = asyncio.ensure_future(check)
            await until(lambda: len(slow.received) == 2, within_s=30)
            loop.move(601)
            (problem,) = await checking
        assert (problem.code, problem.field) == ("tool_failed", TOOL)

    in_movable_time(test)


def test_a_job_whose_tool_takes_hours_passes_the_check_with_a_warning(tmp_path: Path) -> None:
    async def test(loop: MovableLoop) -> None:
        async with FakeEndpoint(hangs) as slow:
            case = Case(tmp_path, slow, slow)
            tool = {"name": "cat", "server_url": slow.url, "timeout_s": 7_200}
            case.reinforcement = {"tools": [tool], "grader": EXACT, "limits": {"rollout_timeout_s": 10_000}}
            (warning,) = await _after_ten_minutes(loop, case.warnings(), slow)
        assert warning.startswith(f"{TOOL}: the trial call was not answered within 600 s")
        assert warning.endswith("[unanswered_trial_call]")

    in_movable_time(test)
