"""Calls of the dispatcher and the grader pool over a channel have no deadline but their own."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_rft.actors.grading.grader_pool import GraderPoolClient
from agent_rft.actors.tools.dispatcher_actor import DispatcherClient
from agent_rft.types import ToolCall
from tests.support.fakes_http import MovableLoop, in_movable_time, until
from tests.unit.actors.runtime.test_channel import FakeActor


def test_a_tool_call_and_a_grade_may_take_five_hours() -> None:
    async def test(loop: MovableLoop) -> None:
        actor = FakeActor()
        running: list[str] = []
        over = asyncio.Event()

        async def call_turn(trace_id: str, item: dict[str, Any], calls: list[Any]) -> list[Any]:
            running.append("call_turn")
            await over.wait()
            return [[calls[0][0], "built"]]

        async def grade(sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> list[Any]:
            running.append("grade")
            await over.wait()
            return [0.5]

        actor.listener.methods = {"call_turn": call_turn, "grade": grade}
        build = ToolCall("call_1", "build", "{}")
        call = asyncio.create_task(DispatcherClient(actor).call_turn("trace_1", {}, [build]))
        graded = asyncio.create_task(GraderPoolClient(actor).grade({}, {}, "trace_1"))
        await until(lambda: len(running) == 2)
        loop.move(5 * 3600)
        await asyncio.sleep(0.01)
        over.set()
        (result,) = await call
        assert result.output == "built" and (await graded).value == 0.5
        await actor.listener.close()

    in_movable_time(test)
