"""Models on demand: shared, limited in number, removed when idle, and never waited for without a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest import TestCase

import openai
import pytest

from agent_rft.actors.engine.chat.chat_engine import DamagedModel
from agent_rft.actors.engine.chat.chat_model import ChatModel, Refusal
from agent_rft.chat.serve_settings import ServeSettings
from agent_rft.errors import EngineFailed, UserError
from agent_rft.serve.inference import chat, responses
from agent_rft.serve.inference.model_server import (
    RELEASE_IDLE_S,
    RELEASE_POLL_S,
    START_TIMEOUT_S,
    Answers,
    AppState,
    NotServed,
    ServedModels,
)
from agent_rft.serve.stores.model_registry import ModelRecord, ModelRegistry, UnknownModel
from agent_rft.serve.stores.sealed_secrets import FixedSecrets, MasterSecret, SecretBox
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, EngineLimits
from agent_rft.wire.api_errors import ApiError
from tests.support.api import client_of, openai_of
from tests.support.fake_models import FakeModels, turn
from tests.support.fakes_http import FakeTime, until
from tests.support.jobs import database_with_tables
from tests.support.tiny_model import WITHOUT_TOOLS, write_tiny_model


class FakeHosting:
    """Applications named by their models' folders, whose answers wait for `answer_now`.

    A deployed application is in the state `starts` at once; a removed one disappears when its last answer has ended.
    """

    def __init__(self, time: FakeTime) -> None:
        self._time = time
        self.starts: AppState = AppState.RUNNING
        self.apps: dict[str, AppState] = {}
        self.deployed: list[str] = []
        self.removed: list[str] = []
        self.removed_at: dict[str, float] = {}
        self.used_at: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self.answer_now, self.accept_now = asyncio.Event(), asyncio.Event()
        self.answer_now.set()
        self.accept_now.set()
        self.answers: list[dict[str, Any] | Refusal] = [{"id": "1"}]
        self.fails: Exception | None = None
        self.asked = 0
        self.in_the_way: list[str] = []
        self.waiting = 0
        """How many engines a waiting run needs."""

    def app_names(self, record: ModelRecord) -> list[str]:
        """A base is preferably served with its adapters; the folder of an adapter is base+name."""
        if "damaged" in record.folder:
            raise UserError("/secret/path: r: must be 1", public_message="its adapter_config.json: r: must be 1")
        base, adapts, _ = record.folder.partition("+")
        return [f"{base}+"] if adapts else [f"{base}+", base]

    async def states(self) -> dict[str, AppState]:
        self.asked += 1
        return dict(self.apps)

    async def deploy(self, name: str, record: ModelRecord) -> None:
        self.deployed.append(name)
        self.apps[name] = self.starts
        self.used_at[name] = self._time.now

    async def remove(self, name: str) -> None:
        self.removed.append(name)
        self.removed_at[name] = self._time.now
        self.apps[name] = AppState.STOPPING
        if not self.calls.get(name):
            del self.apps[name]

    async def idle_s(self, name: str) -> float | None:
        return 0.0 if self.calls.get(name) else self._time.now - self.used_at[name]

    async def blocking_runs(self) -> list[str]:
        return self.in_the_way

    async def has_waiting_run(self) -> bool:
        return self.waiting > 0

    async def apps_to_release(self, idle_s: Mapping[str, float]) -> list[str]:
        return sorted(idle_s, key=lambda name: -idle_s[name])[: self.waiting] if len(idle_s) >= self.waiting else []

    async def answer(self, name: str, record: ModelRecord, body: Mapping[str, Any], *, stream: bool) -> Answers:
        await self.accept_now.wait()
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
            if self.apps.get(name) is AppState.STOPPING and not self.calls[name]:
                del self.apps[name]


class HostedModels:
    """AppState models on a fake hosting, and a clock that only `sleep` and tests advance."""

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


def make_world(**limits: Any) -> HostedModels:
    return HostedModels(EngineLimits(**limits))


async def refused(task: asyncio.Task[Any]) -> ApiError:
    with pytest.raises(ApiError) as raised:
        await task
    return raised.value


async def test_concurrent_calls_and_aliases_share_one_model() -> None:
    hosted = make_world()
    answers = await asyncio.gather(*(hosted.ask(name) for name in ["a", "a", "alias-of-a"] * 5))
    assert hosted.hosting.deployed == ["a"]
    assert answers[0] == {"id": "1", "model": "a"} and answers[2]["model"] == "alias-of-a"
    asked = hosted.hosting.asked
    await hosted.ask("a")
    assert hosted.hosting.asked == asked, "the states are not read again for a model that was just running"


async def test_the_sdk_calls_an_alias_by_its_dated_names(tmp_path: Path) -> None:
    database = database_with_tables(tmp_path)
    hosted = make_world()
    hosted.hosting.answers = [await FakeModels(turn("hello")).chat({"model": "any"})]
    registry = ModelRegistry(database, {"gpt-5": "large", "gpt-5-2031-01-31": "newer"})
    served = ServedModels(registry, hosted.hosting, EngineLimits(max_models=2), timing=hosted.time.timing())
    box = SecretBox(FixedSecrets((MasterSecret("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="),)))
    routers = [chat.make_router(served, DEFAULT_CONFIG), responses.make_router(served, DEFAULT_CONFIG, box)]
    async with client_of(routers) as http:
        sdk = openai_of(http)
        for name in ("gpt-5", "gpt-5-2025-08-07", "gpt-5-2031-01-31"):
            said = await sdk.chat.completions.create(model=name, messages=[{"role": "user", "content": "hi"}])
            assert (said.model, said.choices[0].message.content) == (name, "hello")
            response = await sdk.responses.create(model=name, input="hi")
            assert (response.model, response.output_text) == (name, "hello")
        with pytest.raises(openai.NotFoundError, match=r"did you mean 'gpt-5'.*`aliases` in agent-rft.yaml") as raised:
            await sdk.chat.completions.create(model="gpt-5-mini", messages=[{"role": "user", "content": "hi"}])
        assert raised.value.code == "model_not_found"
    assert hosted.hosting.deployed == ["large", "newer"]
    database.close()


async def test_tools_for_a_model_without_tools_are_a_400_of_both_routes(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", template=WITHOUT_TOOLS)
    function: Any = {"name": "cat", "parameters": {"type": "object"}}
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    tools: list[Any] = [{"type": "function", "function": function}]
    answer = await ChatModel(folder, ServeSettings(), 64).chat({"messages": messages, "tools": tools}, None)
    hosted = make_world()
    hosted.hosting.answers = [answer]
    box = SecretBox(FixedSecrets((MasterSecret("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="),)))
    routers = [
        chat.make_router(hosted.served, DEFAULT_CONFIG),
        responses.make_router(hosted.served, DEFAULT_CONFIG, box),
    ]
    async with client_of(routers) as http:
        sdk = openai_of(http)
        for stream in (False, True):
            for request in (
                sdk.chat.completions.create(model="a", messages=messages, tools=tools, stream=stream),
                sdk.responses.create(model="a", input="hi", tools=[{"type": "function", **function}], stream=stream),
            ):
                with pytest.raises(openai.BadRequestError, match="Remove the tools, or use a model") as raised:
                    await request
                assert (raised.value.code, raised.value.param) == ("tools_unsupported", "tools")


async def test_an_unknown_model_is_a_404_and_starts_nothing() -> None:
    hosted = make_world()
    error = await refused(hosted.ask("unknown"))
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert not hosted.hosting.deployed


async def test_a_first_call_waits_until_a_deadline_and_a_later_one_finds_the_engine_started() -> None:
    hosted = make_world(max_start_wait_s=0.05)
    hosted.hosting.starts = AppState.STARTING
    error = await refused(hosted.ask("a"))
    assert (error.status, error.code) == (503, "model_unavailable") and "is starting" in error.message
    assert int(error.headers["Retry-After"]) > 0
    hosted.hosting.apps["a"] = AppState.RUNNING
    assert (await hosted.ask("a"))["id"] == "1"
    assert hosted.hosting.deployed == ["a"]


async def test_the_longest_idle_model_is_removed_for_another_one() -> None:
    hosted = make_world(max_models=2)
    for name in ("a", "b", "a"):
        hosted.time.now += 10
        await hosted.ask(name)
    await hosted.ask("c")
    assert hosted.hosting.removed == ["b"]
    assert set(hosted.hosting.apps) == {"a", "c"}


async def test_a_call_for_another_model_waits_for_a_busy_one_until_a_deadline() -> None:
    hosted = make_world(max_start_wait_s=0.1)
    await hosted.ask("a")
    hosted.hosting.answer_now.clear()
    busy = hosted.ask("a")
    await until(lambda: hosted.hosting.calls["a"] == 1, within_s=10)
    error = await refused(hosted.ask("b"))
    assert error.status == 503 and "all of them are busy" in error.message
    assert not hosted.hosting.removed
    hosted.hosting.answer_now.set()
    await busy
    assert (await hosted.ask("b"))["model"] == "b"


async def test_an_idle_model_is_removed_and_deployed_again_by_the_next_call() -> None:
    hosted = make_world(idle_s=60)
    await hosted.ask("a")
    running = asyncio.create_task(hosted.served.run())
    await until(lambda: hosted.hosting.removed == ["a"], within_s=10)
    assert hosted.time.now >= 60
    running.cancel()
    hosted.time.now += 10
    await hosted.ask("a")
    assert hosted.hosting.deployed == ["a", "a"]


async def test_a_model_is_not_idle_while_a_call_is_on_its_way_to_it() -> None:
    hosted = make_world(idle_s=60)
    hosted.hosting.accept_now.clear()
    call, running = hosted.ask("a"), asyncio.create_task(hosted.served.run())
    await until(lambda: hosted.time.now >= 300, within_s=10)
    hosted.hosting.accept_now.set()
    assert (await call)["model"] == "a"
    assert (hosted.hosting.deployed, hosted.hosting.removed) == (["a"], [])
    await until(lambda: hosted.hosting.removed == ["a"], within_s=10)
    running.cancel()


async def test_idle_model_is_released_to_a_waiting_job_and_a_busy_one_is_not() -> None:
    hosted = make_world(max_models=2, idle_s=10_000)
    await hosted.ask("a")
    await hosted.ask("b")
    hosted.hosting.answer_now.clear()
    busy = hosted.ask("b")
    await until(lambda: hosted.hosting.calls["b"] == 1, within_s=10)
    running = asyncio.create_task(hosted.served.run())
    used = hosted.hosting.used_at["a"]
    await until(lambda: hosted.time.now > used + 2 * RELEASE_IDLE_S, within_s=10)
    assert not hosted.hosting.removed, "no job waits"
    hosted.hosting.waiting = 2
    began = hosted.time.now
    await until(lambda: hosted.time.now > began + 2 * RELEASE_IDLE_S, within_s=10)
    assert not hosted.hosting.removed, "one idle engine is not enough for the job"
    hosted.hosting.waiting = 1
    await until(lambda: hosted.hosting.removed == ["a"], within_s=10)
    running.cancel()
    hosted.hosting.answer_now.set()
    await busy


async def test_model_in_recent_use_is_not_released() -> None:
    hosted = make_world(idle_s=10_000)
    await hosted.ask("a")
    hosted.hosting.waiting = 1
    running = asyncio.create_task(hosted.served.run())
    await until(lambda: hosted.hosting.removed == ["a"], within_s=10)
    running.cancel()
    waited_s = hosted.hosting.removed_at["a"] - hosted.hosting.used_at["a"]
    assert RELEASE_IDLE_S <= waited_s <= RELEASE_IDLE_S + RELEASE_POLL_S


async def test_call_for_a_model_without_room_names_the_jobs_in_the_way() -> None:
    hosted = make_world()
    hosted.hosting.in_the_way = ["ftjob-1"]
    error = await refused(hosted.ask("a"))
    assert (error.status, error.code, error.headers["Retry-After"]) == (503, "model_unavailable", "10")
    assert "fine-tuning jobs use the needed resources: ftjob-1." in error.message
    assert hosted.hosting.deployed == []
    hosted.hosting.in_the_way = []
    hosted.time.now += 10
    await hosted.ask("a")
    assert hosted.hosting.deployed == ["a"]


async def test_a_model_that_does_not_start_is_removed_by_a_call_or_in_the_background() -> None:
    hosted = make_world(idle_s=10)
    hosted.hosting.starts = AppState.FAILED
    error = await refused(hosted.ask("a"))
    assert error.status == 503 and "did not start" in error.message
    assert hosted.hosting.removed == ["a"]
    hosted.hosting.starts = AppState.RUNNING
    hosted.time.now += 10
    await hosted.ask("a")

    hosted.hosting.apps["hangs"] = AppState.STARTING
    began = hosted.time.now
    running = asyncio.create_task(hosted.served.run())
    await until(lambda: "hangs" in hosted.hosting.removed, within_s=10)
    running.cancel()
    assert hosted.time.now - began > START_TIMEOUT_S


async def test_idle_models_are_still_removed_after_ray_serve_raised() -> None:
    hosted = make_world(idle_s=60)
    await hosted.ask("a")
    good, fails = hosted.hosting.states, True

    async def states() -> dict[str, AppState]:
        if fails:
            raise RuntimeError("the controller is restarting")
        return await good()

    hosted.hosting.states = states  # type: ignore[method-assign]
    with TestCase().assertLogs("agent_rft.serve") as logged:
        running = asyncio.create_task(hosted.served.run())
        await until(lambda: any("not removed" in line for line in logged.output), within_s=10)
    fails = False
    await until(lambda: hosted.hosting.removed == ["a"], within_s=10)
    running.cancel()


async def test_adapters_share_one_engine_which_serves_their_base_too_while_it_runs() -> None:
    hosted = make_world(max_models=2)
    await hosted.ask("a")
    await asyncio.gather(*(hosted.ask(name) for name in ("a+one", "a+two", "alias-of-a+one")))
    assert hosted.hosting.deployed == ["a", "a+"]
    hosted.time.now += 10
    await hosted.ask("a")
    assert hosted.hosting.used_at["a+"] == hosted.time.now > hosted.hosting.used_at["a"] + 5
    hosted.time.now += 10
    await hosted.ask("b")
    assert hosted.hosting.removed == ["a"]


async def test_a_base_waits_for_the_engine_of_its_adapters_that_is_being_started() -> None:
    hosted = make_world(max_models=2)
    hosted.hosting.starts = AppState.STARTING
    tasks = [hosted.ask(name) for name in ("a+one", "a")]
    await until(lambda: hosted.hosting.asked > 3, within_s=10)
    assert hosted.hosting.deployed == ["a+"]
    hosted.hosting.apps["a+"] = AppState.RUNNING
    assert [answer["model"] for answer in await asyncio.gather(*tasks)] == ["a+one", "a"]


async def test_a_damaged_model_is_a_400_for_its_caller_only() -> None:
    hosted = make_world()
    error = await refused(hosted.ask("damaged"))
    assert (error.status, error.code, error.param) == (400, "model_damaged", "model")
    assert "secret" not in error.message and "must be 1" in error.message and "/secret/path" in error.cause
    hosted.hosting.fails = DamagedModel("/secret/adapter: truncated", public_message="its adapter is damaged")
    error = await refused(hosted.ask("a+one"))
    assert error.status == 400 and error.message == "The model 'a+one' cannot be served: its adapter is damaged."
    hosted.hosting.fails = None
    await hosted.ask("a")
    assert hosted.hosting.deployed == ["a+"]


async def test_a_failed_engine_is_a_503_that_hides_the_cause() -> None:
    hosted = make_world()
    await hosted.ask("a")
    hosted.hosting.fails = EngineFailed("CUDA out of memory in /secret/path")
    error = await refused(hosted.ask("a"))
    assert error.status == 503 and "secret" not in error.message and "/secret/path" in error.cause
    hosted.hosting.fails = None
    assert (await hosted.ask("a"))["id"] == "1"


async def test_a_model_that_another_server_removed_is_deployed_again_by_the_next_call() -> None:
    hosted = make_world()
    await hosted.ask("a")
    del hosted.hosting.apps["a"]
    assert (await hosted.ask("a"))["id"] == "1"
    assert hosted.hosting.deployed == ["a", "a"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_that_the_engine_refuses_is_the_clients_error(streamed: bool) -> None:
    hosted = make_world()
    await hosted.ask("a")
    hosted.hosting.answers = [Refusal(400, "too long", "messages", "context_length_exceeded")]
    body = {"model": "a", "messages": []}
    with pytest.raises(ApiError) as raised:
        await (hosted.served.stream(body) if streamed else hosted.served.chat(body))
    assert (raised.value.status, raised.value.code, raised.value.param) == (400, "context_length_exceeded", "messages")
    assert not hosted.hosting.removed


async def test_a_stream_keeps_its_engine_until_it_ends_or_the_client_disconnects() -> None:
    hosted = make_world(max_start_wait_s=0.1)
    await hosted.ask("a")
    hosted.hosting.answers = [{"n": 1}, {"n": 2}]
    chunks: Any = await hosted.served.stream({"model": "a", "messages": []})
    assert await anext(chunks) == {"n": 1, "model": "a"}
    assert (await refused(hosted.ask("b"))).status == 503
    await chunks.aclose()
    assert not hosted.hosting.calls["a"]
    assert (await hosted.ask("b"))["model"] == "b"


async def test_a_deployment_is_completed_even_if_its_caller_is_cancelled() -> None:
    hosted = make_world()
    started, go_on = asyncio.Event(), asyncio.Event()
    good = hosted.hosting.deploy

    async def deploy(name: str, record: ModelRecord) -> None:
        started.set()
        await go_on.wait()
        await good(name, record)

    hosted.hosting.deploy = deploy  # type: ignore[method-assign]
    cancelled = hosted.ask("a")
    await started.wait()
    cancelled.cancel()
    go_on.set()
    await until(lambda: hosted.hosting.deployed == ["a"], within_s=10)
    assert not hosted.alone
    await hosted.ask("a")
    assert hosted.hosting.deployed == ["a"]
