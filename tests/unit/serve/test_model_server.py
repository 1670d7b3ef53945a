"""Engines on demand: shared, bounded, stopped when idle, and never waited for without an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from actors.chat_engine import Refusal
from actors.timing import Timing
from cluster.model_registry import ModelRecord, UnknownModel
from serve.errors import ApiError
from serve.model_server import EnginePool, ServeLimits
from tests.fakes_http import until
from trainer.errors import EngineFailed
from trainer.serve_settings import ServeSettings


class FakeEngine:
    """An engine whose start and answers wait for `ready` and `answer`."""

    def __init__(self, record: ModelRecord) -> None:
        self.record = record
        self.ready, self.answer = asyncio.Event(), asyncio.Event()
        self.answer.set()
        self.stopped = False
        self.fails: Exception | None = None
        self.answers: list[dict[str, Any] | Refusal] = [{"id": "1"}]
        self.running = 0

    async def start(self) -> None:
        await self.ready.wait()
        if self.fails is not None:
            raise self.fails

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any] | Refusal:
        assert not self.stopped
        await self.answer.wait()
        if self.fails is not None:
            raise self.fails
        return self.answers[0]

    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any] | Refusal]:
        self.running += 1
        try:
            for answer in self.answers:
                yield answer
                await self.answer.wait()
        finally:
            self.running -= 1

    async def stop(self) -> None:
        self.stopped = True


class World:
    """A pool over fake engines and a clock that the test turns; `ready` engines start at once."""

    def __init__(self, limits: ServeLimits, ready: bool = True) -> None:
        self.now = 0.0
        self.engines: list[FakeEngine] = []
        self._ready = ready
        timing = Timing(clock=lambda: self.now, sleep=lambda _: asyncio.sleep(0.001))
        self.pool = EnginePool(self, self._spawn, limits, timing)

    def resolve(self, model_id: str) -> ModelRecord:
        if model_id == "unknown":
            raise UnknownModel("The model 'unknown' does not exist.")
        return ModelRecord(model_id, model_id.removeprefix("alias-of-"), "base", None, 0, ServeSettings())

    def _spawn(self, record: ModelRecord) -> FakeEngine:
        engine = FakeEngine(record)
        if self._ready:
            engine.ready.set()
        self.engines.append(engine)
        return engine

    def ask(self, model: str) -> asyncio.Task[dict[str, Any]]:
        return asyncio.create_task(self.pool.chat({"model": model, "messages": []}))

    @property
    def folders(self) -> list[str]:
        return [engine.record.folder for engine in self.engines]


async def refused(task: asyncio.Task[Any]) -> ApiError:
    with pytest.raises(ApiError) as raised:
        await task
    return raised.value


@pytest.fixture
async def worlds() -> AsyncIterator[list[World]]:
    worlds: list[World] = []
    yield worlds
    for world in worlds:
        await world.pool.close()


def made(worlds: list[World], ready: bool = True, **limits: Any) -> World:
    worlds.append(World(ServeLimits(**limits), ready))
    return worlds[-1]


async def test_calls_at_a_time_share_one_engine_and_so_do_two_names_of_a_model(worlds: list[World]) -> None:
    world = made(worlds)
    answers = await asyncio.gather(*(world.ask(name) for name in ["a", "a", "alias-of-a"] * 5))
    assert world.folders == ["a"]
    assert answers[0] == {"id": "1", "model": "a"} and answers[2]["model"] == "alias-of-a"


async def test_an_unknown_model_is_a_404_that_starts_nothing(worlds: list[World]) -> None:
    world = made(worlds)
    error = await refused(world.ask("unknown"))
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert not world.engines


async def test_a_first_call_waits_with_a_deadline_and_a_later_one_finds_the_engine_started(worlds: list[World]) -> None:
    world = made(worlds, ready=False, start_wait_s=0.05)
    error = await refused(world.ask("a"))
    assert (error.status, error.code) == (503, "model_unavailable")
    assert int(error.headers["Retry-After"]) > 0
    world.engines[0].ready.set()
    assert (await world.ask("a"))["id"] == "1"
    assert len(world.engines) == 1


async def test_an_idle_engine_makes_place_for_another_model(worlds: list[World]) -> None:
    world = made(worlds, max_engines=1)
    await world.ask("a")
    await world.ask("b")
    assert world.folders == ["a", "b"]
    assert [engine.stopped for engine in world.engines] == [True, False]


async def test_the_engine_that_was_idle_longest_makes_place(worlds: list[World]) -> None:
    world = made(worlds, max_engines=2)
    for name in ("a", "b", "a"):
        world.now += 1
        await world.ask(name)
    await world.ask("c")
    assert {e.record.folder: e.stopped for e in world.engines} == {"a": False, "b": True, "c": False}


async def test_a_call_for_another_model_waits_for_a_busy_engine_but_not_for_ever(worlds: list[World]) -> None:
    world = made(worlds, max_engines=1, start_wait_s=0.05)
    await world.ask("a")
    world.engines[0].answer.clear()
    busy = world.ask("a")
    await asyncio.sleep(0)
    assert (await refused(world.ask("b"))).status == 503
    assert not world.engines[0].stopped
    world.engines[0].answer.set()
    await busy
    assert (await world.ask("b"))["model"] == "b"


async def test_an_engine_stops_once_it_is_idle_for_long_and_comes_back(worlds: list[World]) -> None:
    world = made(worlds, idle_s=60)
    await world.ask("a")
    world.now = 59
    await asyncio.sleep(0.01)
    assert not world.engines[0].stopped
    world.now = 61
    await until(lambda: world.engines[0].stopped, within_s=10)
    await world.ask("a")
    assert len(world.engines) == 2


async def test_an_engine_that_cannot_start_is_a_503_and_is_tried_anew_by_the_next_call(worlds: list[World]) -> None:
    world = made(worlds, ready=False)
    first = world.ask("a")
    await until(lambda: bool(world.engines), within_s=10)
    world.engines[0].fails = EngineFailed("CUDA out of memory in /secret/path")
    world.engines[0].ready.set()
    error = await refused(first)
    assert error.status == 503 and "secret" not in error.message
    second = world.ask("a")
    await until(lambda: len(world.engines) == 2, within_s=10)
    world.engines[1].ready.set()
    await second


async def test_an_engine_that_died_is_replaced_at_the_next_call(worlds: list[World]) -> None:
    world = made(worlds)
    await world.ask("a")
    world.engines[0].fails = EngineFailed("the engine died")
    assert (await refused(world.ask("a"))).status == 503
    assert (await world.ask("a"))["id"] == "1"
    assert [engine.stopped for engine in world.engines] == [True, False]


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_the_engine_refuses_is_the_clients_mistake_and_keeps_the_engine(
    worlds: list[World], streamed: bool
) -> None:
    world = made(worlds)
    await world.ask("a")
    world.engines[0].answers = [Refusal(400, "too long", "messages", "context_length_exceeded")]
    body = {"model": "a", "messages": []}
    with pytest.raises(ApiError) as raised:
        await (world.pool.stream(body) if streamed else world.pool.chat(body))
    assert (raised.value.status, raised.value.code, raised.value.param) == (400, "context_length_exceeded", "messages")
    assert not world.engines[0].stopped


async def test_a_stream_holds_its_engine_to_its_end_and_lets_go_when_the_client_leaves(worlds: list[World]) -> None:
    world = made(worlds, max_engines=1, start_wait_s=0.05)
    await world.ask("a")
    engine = world.engines[0]
    engine.answers = [{"n": 1}, {"n": 2}]
    chunks: Any = await world.pool.stream({"model": "a", "messages": []})
    assert await anext(chunks) == {"n": 1, "model": "a"}
    assert (await refused(world.ask("b"))).status == 503
    await chunks.aclose()
    assert not engine.running
    assert (await world.ask("b"))["model"] == "b"
