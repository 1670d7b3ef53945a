"""JSON from endpoints: large texts are parsed in threads, of which one key uses half."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from agent_rft.actors.endpoints.network.json_reader import MAX_INLINE_BYTES, MAX_THREADS, read_json, read_json_for
from agent_rft.actors.grading.trial_slots import TrialSlots
from tests.support.fakes_http import until

LARGE = json.dumps("a" * MAX_INLINE_BYTES)


class HeldExecutor(ThreadPoolExecutor):
    """An executor whose work a test starts."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Callable[[], None]] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.held.append(lambda: future.set_result(work(*args, **kwargs)))
        return future


async def test_small_texts_are_parsed_without_a_thread() -> None:
    asyncio.get_running_loop().set_default_executor(executor := HeldExecutor())
    assert (await read_json('{"a": 1}')).value == {"a": 1}
    assert (await read_json(LARGE[:1] + LARGE[3:])).value == "a" * (MAX_INLINE_BYTES - 2)
    assert executor.held == []


async def test_errors_of_large_texts_are_raised() -> None:
    with pytest.raises(ValueError, match="more than 100,000 values"):
        await read_json("[" + "[]," * 100_000 + "0]")
    with pytest.raises(ValueError, match="Expecting"):
        await read_json(b"a" * (MAX_INLINE_BYTES + 1))


async def test_a_key_uses_half_of_the_threads() -> None:
    asyncio.get_running_loop().set_default_executor(executor := HeldExecutor())
    slots = TrialSlots(16)

    async def read(key: str) -> str:
        async with slots.hold_slot(key):
            return str((await read_json(LARGE)).value)

    first = [asyncio.create_task(read("a")) for _ in range(5)]
    await until(lambda: len(executor.held) == MAX_THREADS // 2)
    other = asyncio.create_task(read("b"))
    await until(lambda: len(executor.held) == MAX_THREADS)
    executor.held.pop()()
    assert await other == json.loads(LARGE)
    assert len(executor.held) == MAX_THREADS // 2 and not any(task.done() for task in first)
    while not all(task.done() for task in first):
        await until(lambda: len(executor.held) == 1)
        executor.held.pop()()
        await asyncio.sleep(0.02)
        assert len(executor.held) <= MAX_THREADS // 2
    with read_json_for("c"):
        third = asyncio.create_task(read_json(LARGE))
    await until(lambda: len(executor.held) == 1)
    executor.held.pop()()
    assert (await third).value == json.loads(LARGE)
