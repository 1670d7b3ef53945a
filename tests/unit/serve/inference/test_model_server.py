"""Models on demand: shared, bounded, removed when idle, and never waited for without an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest import TestCase

import pytest

from actors.engine.chat_engine import Refusal
from cluster.stores.model_registry import ModelRecord, UnknownModel
from serve.http.errors import ApiError
from serve.inference.model_server import START_TIMEOUT_S, Answers, NotServed, Served, ServedModels
from tests.support.fakes_http import FakeTime, until
from trainer.errors import EngineFailed
from trainer.spec.operator import EngineLimits
from trainer.spec.serving import ServeSettings


class FakeHosting:
    """Applications by their models' folders. Started ones are up at once where `starts` says so; a removed one is gone
    when its last answer has ended. Answers wait for `answer`.
    """

    def __init__(self, time: FakeTime) -> None:
        self._time = time
        self.starts: Served = Served.RUNNING
        self.apps: dict[str, Served] = {}
        self.deployed: list[str] = []
        self.removed: list[str] = []
        self.used_at: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self.answer_now = asyncio.Event()
        self.answer_now.set()
        self.answers: list[dict[str, Any] | Refusal] = [{"id": "1"}]
        self.fails: Exception | None = None
        self.asked = 0

    def name_of(self, record: ModelRecord) -> str:
        return record.folder

    async def states(self) -> dict[str, Served]:
        self.asked += 1
        return dict(self.apps)

    async def deploy(self, name: str, record: ModelRecord) -> None:
        self.deployed.append(name)
        self.apps[name] = self.starts
        self.used_at[name] = self._time.now

    async def remove(self, name: str) -> None:
        self.removed.append(name)
        self.apps[name] = Served.STOPPING
        if not self.calls.get(name):
            del self.apps[name]

    async def idle_s(self, name: str) -> float | None:
        return 0.0 if self.calls.get(name) else self._time.now - self.used_at[name]

    async def answer(self, name: str, body: Mapping[str, Any], *, stream: bool) -> Answers:
        if name not in self.apps:
            raise NotServed(name)
        with self._call(name):
            yield None
            for answer in self.answers:
                if self.fails is not None:
                    raise self.fails
                await self.answer_now.wait()
                yield answer

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        self.calls[name] = self.calls.get(name, 0) + 1
        try:
            yield
        finally:
            self.calls[name] -= 1
            self.used_at[name] = self._time.now
            if self.apps.get(name) is Served.STOPPING and not self.calls[name]:
                del self.apps[name]


class World:
    """Served models on a fake hosting, and a clock that goes on while somebody waits for it."""

    def __init__(self, limits: EngineLimits) -> None:
        self.time = FakeTime()
        self.hosting = FakeHosting(self.time)
        self.alone = 0
        self.served = ServedModels(self, self.hosting, limits, self._exclusive, self.time.timing())

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        assert not self.alone
        self.alone += 1
        try:
            yield
        finally:
            self.alone -= 1

    def resolve(self, model_id: str) -> ModelRecord:
        if model_id == "unknown":
            raise UnknownModel("The model 'unknown' does not exist.")
        return ModelRecord(model_id, model_id.removeprefix("alias-of-"), "base", None, 0, ServeSettings())

    def ask(self, model: str) -> asyncio.Task[dict[str, Any]]:
        return asyncio.create_task(self.served.chat({"model": model, "messages": []}))


def made(**limits: Any) -> World:
    return World(EngineLimits(**limits))


async def refused(task: asyncio.Task[Any]) -> ApiError:
    with pytest.raises(ApiError) as raised:
        await task
    return raised.value


async def test_calls_at_a_time_share_one_model_and_so_do_two_names_of_it() -> None:
    world = made()
    answers = await asyncio.gather(*(world.ask(name) for name in ["a", "a", "alias-of-a"] * 5))
    assert world.hosting.deployed == ["a"]
    assert answers[0] == {"id": "1", "model": "a"} and answers[2]["model"] == "alias-of-a"
    asked = world.hosting.asked
    await world.ask("a")
    assert world.hosting.asked == asked, "a model that was there a moment ago costs no question"


async def test_an_unknown_model_is_a_404_that_starts_nothing() -> None:
    world = made()
    error = await refused(world.ask("unknown"))
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert not world.hosting.deployed


async def test_a_first_call_waits_with_a_deadline_and_a_later_one_finds_the_engine_started() -> None:
    world = made(first_call_wait_s=0.05)
    world.hosting.starts = Served.STARTING
    error = await refused(world.ask("a"))
    assert (error.status, error.code) == (503, "model_unavailable") and "being started" in error.message
    assert int(error.headers["Retry-After"]) > 0
    world.hosting.apps["a"] = Served.RUNNING
    assert (await world.ask("a"))["id"] == "1"
    assert world.hosting.deployed == ["a"]


async def test_an_idle_model_makes_place_for_another_one_and_the_longest_idle_one_first() -> None:
    world = made(max_models=2)
    for name in ("a", "b", "a"):
        world.time.now += 10
        await world.ask(name)
    await world.ask("c")
    assert world.hosting.removed == ["b"]
    assert set(world.hosting.apps) == {"a", "c"}


async def test_a_call_for_another_model_waits_for_a_busy_one_but_not_for_ever() -> None:
    world = made(first_call_wait_s=0.1)
    await world.ask("a")
    world.hosting.answer_now.clear()
    busy = world.ask("a")
    await until(lambda: world.hosting.calls["a"] == 1, within_s=10)
    error = await refused(world.ask("b"))
    assert error.status == 503 and "in use" in error.message
    assert not world.hosting.removed
    world.hosting.answer_now.set()
    await busy
    assert (await world.ask("b"))["model"] == "b"


async def test_a_model_that_is_idle_for_long_is_removed_and_comes_back() -> None:
    world = made(idle_s=60)
    await world.ask("a")
    looking = asyncio.create_task(world.served.run())
    await until(lambda: world.hosting.removed == ["a"], within_s=10)
    assert world.time.now >= 60
    looking.cancel()
    world.time.now += 10
    await world.ask("a")
    assert world.hosting.deployed == ["a", "a"]


async def test_a_model_that_does_not_start_is_removed_by_whoever_sees_it_first() -> None:
    world = made(idle_s=10)
    world.hosting.starts = Served.FAILED
    error = await refused(world.ask("a"))
    assert error.status == 503 and "did not start" in error.message
    assert world.hosting.removed == ["a"]
    world.hosting.starts = Served.RUNNING
    world.time.now += 10
    await world.ask("a")

    world.hosting.apps["hangs"] = Served.STARTING
    began = world.time.now
    looking = asyncio.create_task(world.served.run())
    await until(lambda: "hangs" in world.hosting.removed, within_s=10)
    looking.cancel()
    assert world.time.now - began > START_TIMEOUT_S


async def test_looking_for_idle_models_outlives_what_ray_serve_raises() -> None:
    world = made(idle_s=60)
    await world.ask("a")
    good, fails = world.hosting.states, True

    async def states() -> dict[str, Served]:
        if fails:
            raise RuntimeError("the controller is restarting")
        return await good()

    world.hosting.states = states  # type: ignore[method-assign]
    with TestCase().assertLogs("agent_rft.serve") as logged:
        looking = asyncio.create_task(world.served.run())
        await until(lambda: any("not removed" in line for line in logged.output), within_s=10)
    fails = False
    await until(lambda: world.hosting.removed == ["a"], within_s=10)
    looking.cancel()


async def test_an_engine_that_died_is_a_503_without_its_reasons() -> None:
    world = made()
    await world.ask("a")
    world.hosting.fails = EngineFailed("CUDA out of memory in /secret/path")
    error = await refused(world.ask("a"))
    assert error.status == 503 and "secret" not in error.message
    world.hosting.fails = None
    assert (await world.ask("a"))["id"] == "1"


async def test_a_model_that_another_server_removed_comes_back_for_the_call_that_misses_it() -> None:
    world = made()
    await world.ask("a")
    del world.hosting.apps["a"]
    assert (await world.ask("a"))["id"] == "1"
    assert world.hosting.deployed == ["a", "a"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_the_engine_refuses_is_the_clients_mistake(streamed: bool) -> None:
    world = made()
    await world.ask("a")
    world.hosting.answers = [Refusal(400, "too long", "messages", "context_length_exceeded")]
    body = {"model": "a", "messages": []}
    with pytest.raises(ApiError) as raised:
        await (world.served.stream(body) if streamed else world.served.chat(body))
    assert (raised.value.status, raised.value.code, raised.value.param) == (400, "context_length_exceeded", "messages")
    assert not world.hosting.removed


async def test_a_stream_holds_its_engine_to_its_end_and_lets_go_when_the_client_leaves() -> None:
    world = made(first_call_wait_s=0.1)
    await world.ask("a")
    world.hosting.answers = [{"n": 1}, {"n": 2}]
    chunks: Any = await world.served.stream({"model": "a", "messages": []})
    assert await anext(chunks) == {"n": 1, "model": "a"}
    assert (await refused(world.ask("b"))).status == 503
    await chunks.aclose()
    assert not world.hosting.calls["a"]
    assert (await world.ask("b"))["model"] == "b"


async def test_a_caller_that_leaves_stops_no_decision_halfway() -> None:
    world = made()
    begun, go_on = asyncio.Event(), asyncio.Event()
    good = world.hosting.deploy

    async def deploy(name: str, record: ModelRecord) -> None:
        begun.set()
        await go_on.wait()
        await good(name, record)

    world.hosting.deploy = deploy  # type: ignore[method-assign]
    leaves = world.ask("a")
    await begun.wait()
    leaves.cancel()
    go_on.set()
    await until(lambda: world.hosting.deployed == ["a"], within_s=10)
    assert not world.alone
    await world.ask("a")
    assert world.hosting.deployed == ["a"]
