"""Serves models: each is an application of Ray Serve that is deployed at the first call, shared by all calls and all
replicas of the API, and removed when it is idle.

At most `max_models` are there. A call for another model waits until one of them is idle, which then makes place, the
one that was used least recently first; a first call waits until an engine has started. Both end at a deadline with a
503 that says when to come back. No engine stops under a call. Which applications there are is asked of Ray Serve, not
remembered: whoever dies here, the next one goes on from what is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeVar

from actors.engine.chat_engine import Refusal
from actors.runtime.timing import REAL_TIMING, Timing
from cluster.stores.model_registry import ModelRecord, UnknownModel
from serve.http.errors import ApiError
from trainer.errors import EngineFailed
from trainer.spec.operator import EngineLimits

T = TypeVar("T")

ANSWER_TIMEOUT_S = 600.0
START_TIMEOUT_S = 600.0
POLL_S = 0.25
"""How often a call that waits looks again."""
FRESH_S = 2.0
"""For so long a model that was there is taken to be there still."""
LEAST_IDLE_S = 1.0
"""An engine that was used so short a time ago makes no place: a call may be on its way to it."""
COME_BACK_S = 10
"""After this a model that was not up in time, or had to make place, may be."""

log = logging.getLogger("agent_rft.serve")


class ModelServer(Protocol):
    """What routers need. `body` is a chat completions request whose form was checked; `body["model"]` names the model.

    Raises:
        ApiError: there is no such model, no engine in time, or the model refuses the request.
    """

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer."""

    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Its chunks. What is wrong with a request is raised here; what goes wrong later, by the iterator."""


class ModelLookup(Protocol):
    """What is needed of cluster.stores.model_registry.ModelRegistry."""

    def resolve(self, model_id: str) -> ModelRecord: ...


class Served(Enum):
    """The life of a model's application."""

    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"
    STOPPING = "stopping"


class NotServed(Exception):
    """The application is gone, or was replaced a moment ago."""


Answers = AsyncGenerator[dict[str, Any] | Refusal | None]


class Hosting(Protocol):
    """Where applications run: see serve.inference.model_apps.RayServeModels."""

    def name_of(self, record: ModelRecord) -> str:
        """The application of a model: the same for two names of one model."""

    async def states(self) -> dict[str, Served]:
        """All applications of models."""

    async def deploy(self, name: str, record: ModelRecord) -> None:
        """Begin to start it."""

    async def remove(self, name: str) -> None:
        """Begin to stop it; answers that are under way come to their end."""

    async def idle_s(self, name: str) -> float | None:
        """How long it has had no call; None where nobody can say."""

    def answer(self, name: str, body: Mapping[str, Any], *, stream: bool) -> Answers:
        """None once an engine has taken the request, then the answer or its chunks. Closed, it ends the request.

        Raises:
            NotServed, EngineFailed
        """


@dataclass(slots=True)
class ServedModels:
    """A ModelServer. `exclusive` lets one replica of the API at a time decide which models are there."""

    models: ModelLookup
    hosting: Hosting
    limits: EngineLimits = field(default_factory=EngineLimits)
    exclusive: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext
    timing: Timing = REAL_TIMING
    _states: dict[str, Served] = field(default_factory=dict)
    _seen_at: float = -math.inf
    _starting_since: dict[str, float] = field(default_factory=dict)
    _deciding: asyncio.Lock = field(default_factory=asyncio.Lock)
    _steps: set[asyncio.Task[Any]] = field(default_factory=set)

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        async with self._answers(body, stream=False) as answers:
            answer = await _next(answers)
        return {**_accepted(answer), "model": body["model"]}

    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        chunks = self._chunks(body)
        try:
            first = await anext(chunks)
        except StopAsyncIteration:
            raise _unavailable("The model ended its answer before it began.") from None

        async def whole() -> AsyncIterator[dict[str, Any]]:
            async with contextlib.aclosing(chunks):
                yield first
                async for chunk in chunks:
                    yield chunk

        return whole()

    async def _chunks(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        async with self._answers(body, stream=True) as chunks:
            while True:
                try:
                    chunk = await _next(chunks)
                except StopAsyncIteration:
                    return
                yield {**_accepted(chunk), "model": body["model"]}

    async def run(self) -> None:
        """Remove models that are idle for too long, until cancelled."""
        while True:
            await self.timing.sleep(self.limits.idle_s / 10)
            try:
                await self._decided(self._reap())
            except Exception:  # whatever Ray Serve or the database raises: looked at again
                log.exception("idle models were not removed; tried again")

    # -- a call --------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _answers(self, body: Mapping[str, Any], *, stream: bool) -> AsyncIterator[Answers]:
        """What an engine that has taken the request answers."""
        try:
            record = await asyncio.to_thread(self.models.resolve, body["model"])
        except UnknownModel as error:
            raise ApiError(404, error.message, param="model", code="model_not_found") from None
        name = self.hosting.name_of(record)
        try:
            answers = await self._begun(name, record, body, stream)
            async with contextlib.aclosing(answers):
                yield answers
        except NotServed:
            raise _unavailable("The model's engine was stopped.") from None
        except EngineFailed as error:
            log.error("the engine of %s is lost: %s", body["model"], error)
            raise _unavailable("The model's engine failed.") from None

    async def _begun(self, name: str, record: ModelRecord, body: Mapping[str, Any], stream: bool) -> Answers:
        try:
            async with asyncio.timeout(self.limits.first_call_wait_s):
                while True:
                    await self._wait_for_model(name, record)
                    answers = self.hosting.answer(name, body, stream=stream)
                    try:
                        await anext(answers)
                        return answers
                    except NotServed:
                        self._seen_at = -math.inf
                        await self.timing.sleep(POLL_S)
        except TimeoutError:
            if name in self._states:
                raise _unavailable("The model is being started.") from None
            raise _unavailable(f"This server serves {self.limits.max_models} at a time, and all are in use.") from None

    async def _wait_for_model(self, name: str, record: ModelRecord) -> None:
        if self._states.get(name) is Served.RUNNING and self._age_s() < FRESH_S:
            return
        while await self._decided(self._decide(name, record)) is not Served.RUNNING:
            await self.timing.sleep(POLL_S)

    async def _decide(self, name: str, record: ModelRecord) -> Served | None:
        """Bring the model one step on, unless another call looked a moment ago; its state."""
        async with self._deciding:
            if self._age_s() < POLL_S:
                return self._states.get(name)
            async with self._decision():
                state = self._states.get(name)
                if state is Served.FAILED:
                    await self._remove(name)
                    raise _unavailable("The model's engine did not start.")
                if state is None and len(self._states) < self.limits.max_models:
                    await self.hosting.deploy(name, record)
                    self._states[name] = Served.STARTING
                elif state is None and Served.STOPPING not in self._states.values():
                    await self._make_place()
                return state

    # -- which models are there ----------------------------------------------------------------------------------------

    async def _decided(self, step: Coroutine[Any, Any, T]) -> T:
        """A caller that goes away stops no decision halfway."""
        task = asyncio.ensure_future(step)
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
        return await asyncio.shield(task)

    @contextlib.asynccontextmanager
    async def _decision(self) -> AsyncIterator[None]:
        """Nobody else changes meanwhile which models there are."""
        async with self.exclusive():
            self._states = await self.hosting.states()
            self._seen_at = self.timing.clock()
            yield

    def _age_s(self) -> float:
        return self.timing.clock() - self._seen_at

    async def _make_place(self) -> None:
        found = await self._idle()
        if found and max(found.values()) >= LEAST_IDLE_S:
            await self._remove(max(found, key=lambda name: found[name]))

    async def _idle(self) -> dict[str, float]:
        """How long each running model has been idle."""
        running = [name for name, state in self._states.items() if state is Served.RUNNING]
        idle = await asyncio.gather(*(self.hosting.idle_s(name) for name in running))
        return {name: idle_s for name, idle_s in zip(running, idle, strict=True) if idle_s is not None}

    async def _remove(self, name: str) -> None:
        await self.hosting.remove(name)
        self._states[name] = Served.STOPPING

    async def _reap(self) -> None:
        async with self._deciding, self._decision():
            now = self.timing.clock()
            for name, idle_s in (await self._idle()).items():
                if idle_s >= self.limits.idle_s:
                    await self._remove(name)
            waiting = [name for name, state in self._states.items() if state in (Served.STARTING, Served.FAILED)]
            self._starting_since = {name: self._starting_since.get(name, now) for name in waiting}
            for name, since in self._starting_since.items():
                if self._states[name] is Served.FAILED or now - since > START_TIMEOUT_S:
                    log.error("the model %s did not start and is removed", name)
                    await self._remove(name)


async def _next(answers: Answers) -> dict[str, Any] | Refusal:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answer = await anext(answers)
    except TimeoutError:
        message = f"The model gave no answer within {ANSWER_TIMEOUT_S:g} s."
        raise ApiError(504, message, code="timeout", type="server_error") from None
    assert answer is not None
    return answer


def _accepted(answer: dict[str, Any] | Refusal) -> dict[str, Any]:
    if not isinstance(answer, Refusal):
        return answer
    kind = "invalid_request_error" if answer.status < 500 else "server_error"
    raise ApiError(answer.status, answer.message, param=answer.param, code=answer.code, type=kind)


def _unavailable(why: str) -> ApiError:
    message = f"{why} Please try again in {COME_BACK_S} s."
    headers = {"Retry-After": str(COME_BACK_S)}
    return ApiError(503, message, code="model_unavailable", type="server_error", headers=headers)
