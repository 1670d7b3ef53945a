"""The minimal tool and grader in examples/endpoint; docs/endpoints.md explains how to run endpoints."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import uvicorn

from agent_rft.actors.tools.dispatcher import Dispatcher
from agent_rft.cluster.checks.dry_run import dry_run_problems
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.job_file import load_job
from agent_rft.types import ToolCall
from examples.endpoint.server import app
from tests.support.builders import tasks_of
from tests.support.fakes_http import LOCAL, until
from tests.support.paths import ROOT

JOB = ROOT / "examples" / "endpoint" / "job.yaml"


@pytest.fixture
async def reinforcement() -> AsyncIterator[Reinforcement]:
    """The example's job, with its server running on a free port."""
    os.environ["TOKEN"] = "secret"
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started, within_s=30)
    port = server.servers[0].sockets[0].getsockname()[1]
    raw = load_job(JOB, {"TOKEN": "secret"}).reinforcement
    tools = tuple(
        tool.model_copy(update={"server_url": tool.server_url.replace("8000", str(port))}) for tool in raw.tools
    )
    grader = raw.grader.model_copy(update={"url": f"http://127.0.0.1:{port}/grade"})
    yield raw.model_copy(update={"tools": tools, "grader": grader})
    server.should_exit = True
    await running
    del os.environ["TOKEN"]


async def test_it_passes_the_check_and_responds_as_documented(reinforcement: Reinforcement) -> None:
    tasks = tasks_of(JOB.parent / "rows.jsonl")
    assert await dry_run_problems(reinforcement, tasks, LOCAL) == []
    dispatcher = Dispatcher(reinforcement.tools, LOCAL)
    good, bad, deep = await dispatcher.call_turn(
        "trace_1",
        tasks[0].item,
        [
            ToolCall("1", "add", '{"a": 3, "b": 8}'),
            ToolCall("2", "add", '{"a": "x"}'),
            ToolCall("3", "add", "[" * 100_000),
        ],
    )
    await dispatcher.close()
    assert (good.output, good.error) == (tasks[0].item["reference_answer"], None)
    assert "give numbers a and b" in bad.output
    assert bad.error == deep.error == "tool_error"


async def test_the_check_detects_a_wrong_token(reinforcement: Reinforcement) -> None:
    os.environ["TOKEN"] = "another"
    tasks = tasks_of(JOB.parent / "rows.jsonl")
    (problem,) = await dry_run_problems(reinforcement, tasks, LOCAL)
    assert problem.code == "endpoint_refused"
