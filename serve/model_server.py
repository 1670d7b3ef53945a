"""Serves models: an engine for each starts at the first call, is shared by all calls, and stops when it is idle.

At most `max_engines` run. A call for another model waits until one of them is idle, and a first call waits until its
engine has started; both end at a deadline with a 503 that says when to come back. An engine never stops under a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from actors.chat_engine import Refusal
from actors.timing import REAL_TIMING, Timing
from cluster.model_registry import ModelRecord, UnknownModel
from serve.errors import ApiError
from trainer.errors import EngineFailed, RftError

ANSWER_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
COME_BACK_S = 10
"""After this a model that was not up in time, or had to make place, may be."""

log = logging.getLogger(__name__)


class ModelServer(Protocol):
    """What routers need. `body` is a chat completions request whose form was checked; `body["model"]` names the model.

    Raises:
        ApiError: there is no such model, no engine in time, or the model refuses the request.
    """

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer."""

    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Its chunks. What is wrong with a request is raised here; what goes wrong later, by the iterator."""


class Models(Protocol):
    """What is needed of cluster.model_registry.ModelRegistry."""

    def resolve(self, model_id: str) -> ModelRecord: ...


class ServedEngine(Protocol):
    """One started engine; see actors.chat_engine.ChatEngine. Each method raises RftError."""

    async def start(self) -> None: ...

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any] | Refusal: ...

    def stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any] | Refusal]: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ServeLimits:
    """`start_wait_s`: how long a call waits for its engine; the engine itself may take `start_timeout_s`."""

    max_engines: int = 1
    idle_s: float = 300.0
    start_wait_s: float = 120.0
    start_timeout_s: float = 600.0


Key = tuple[str, str]


@dataclass(slots=True)
class _Place:
    """An engine and who uses it. `idle_since` counts only while there are no users."""

    engine: ServedEngine
    started: asyncio.Task[None]
    idle_since: float
    users: int = 0
    stopped: asyncio.Task[None] | None = None


@dataclass(slots=True)
class EnginePool:
    """A ModelServer over engines that `spawn` makes (without starting them)."""

    models: Models
    spawn: Callable[[ModelRecord], ServedEngine]
    limits: ServeLimits = field(default_factory=ServeLimits)
    timing: Timing = REAL_TIMING
    _places: dict[Key, _Place] = field(default_factory=dict)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _reaper: asyncio.Task[None] | None = None

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        async with self._engine(body["model"]) as engine:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    answer = await engine.chat(body)
            except TimeoutError:
                raise _too_slow() from None
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
        async with self._engine(body["model"]) as engine, contextlib.aclosing(engine.stream(body)) as chunks:  # type: ignore[type-var]
            while True:
                try:
                    async with asyncio.timeout(ANSWER_TIMEOUT_S):
                        chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise _too_slow() from None
                yield {**_accepted(chunk), "model": body["model"]}

    async def close(self) -> None:
        """Stop all engines, also those that are in use."""
        if self._reaper is not None:
            self._reaper.cancel()
        await asyncio.gather(*(self._stop(key, place) for key, place in list(self._places.items())))

    # -- engines -------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _engine(self, model_id: str) -> AsyncIterator[ServedEngine]:
        """The started engine of a model, which does not stop meanwhile; one that died is forgotten."""
        try:
            record = await asyncio.to_thread(self.models.resolve, model_id)
        except UnknownModel as error:
            raise ApiError(404, error.message, param="model", code="model_not_found") from None
        key = (record.folder, repr(record.settings))  # two names of one model share its engine
        try:
            async with asyncio.timeout(self.limits.start_wait_s):
                place = await self._place(key, record)
        except TimeoutError:
            raise _unavailable(f"All {self.limits.max_engines} engines of this server are in use.") from None
        try:
            await self._wait_for_start(place)
            yield place.engine
        except EngineFailed as error:
            log.error("the engine of %s is lost: %s", model_id, error)
            self._stop(key, place)
            raise _unavailable("The model's engine failed.") from None
        finally:
            place.users -= 1
            place.idle_since = self.timing.clock()
            await asyncio.shield(self._tell())

    async def _place(self, key: Key, record: ModelRecord) -> _Place:
        """The engine's place, taken by one more user; made where there is none, as soon as another one is idle."""
        async with self._changed:
            while True:
                place = self._places.get(key)
                if place is not None and place.stopped is None:
                    place.users += 1
                    return place
                if place is None and len(self._places) < self.limits.max_engines:
                    return self._new_place(key, record)
                idle = [item for item in self._places.items() if not item[1].users and item[1].stopped is None]
                if idle and place is None:
                    self._stop(*min(idle, key=lambda item: item[1].idle_since))
                await self._changed.wait()

    def _new_place(self, key: Key, record: ModelRecord) -> _Place:
        engine = self.spawn(record)
        place = _Place(engine, asyncio.create_task(self._start(engine)), self.timing.clock(), users=1)
        self._places[key] = place
        self._reaper = self._reaper or asyncio.create_task(self._reap())

        def ended(started: asyncio.Task[None]) -> None:
            if not started.cancelled() and started.exception() is not None:
                self._stop(key, place)  # also where nobody waits for it any more: the next call tries anew

        place.started.add_done_callback(ended)
        return place

    async def _start(self, engine: ServedEngine) -> None:
        try:
            async with asyncio.timeout(self.limits.start_timeout_s):
                await engine.start()
        except TimeoutError:
            raise EngineFailed(f"it did not start within {self.limits.start_timeout_s:g} s") from None
        except RftError as error:
            raise EngineFailed(f"it did not start: {error.message}") from error

    async def _wait_for_start(self, place: _Place) -> None:
        done, _ = await asyncio.wait({place.started}, timeout=self.limits.start_wait_s)
        if not done:
            raise _unavailable("The model is being started.")
        if place.started.cancelled():
            raise _unavailable("The server is being stopped.")
        place.started.result()

    def _stop(self, key: Key, place: _Place) -> asyncio.Task[None]:
        if place.stopped is None:
            place.stopped = asyncio.create_task(self._run_stop(key, place))
        return place.stopped

    async def _run_stop(self, key: Key, place: _Place) -> None:
        """Stop an engine and give its place free, whatever becomes of its process."""
        place.started.cancel()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await place.engine.stop()
        except (TimeoutError, RftError) as error:
            log.warning("an engine did not stop: %s", error)
        finally:
            del self._places[key]
            await self._tell()

    async def _reap(self) -> None:
        """Stop engines that are idle for too long."""
        while True:
            now = self.timing.clock()
            for key, place in list(self._places.items()):
                if not place.users and now - place.idle_since >= self.limits.idle_s:
                    self._stop(key, place)
            await self.timing.sleep(self.limits.idle_s / 10)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _accepted(answer: dict[str, Any] | Refusal) -> dict[str, Any]:
    if not isinstance(answer, Refusal):
        return answer
    kind = "invalid_request_error" if answer.status < 500 else "server_error"
    raise ApiError(answer.status, answer.message, param=answer.param, code=answer.code, type=kind)


def _unavailable(why: str) -> ApiError:
    message = f"{why} Please try again in {COME_BACK_S} s."
    headers = {"Retry-After": str(math.ceil(COME_BACK_S))}
    return ApiError(503, message, code="model_unavailable", type="server_error", headers=headers)


def _too_slow() -> ApiError:
    message = f"The model gave no answer within {ANSWER_TIMEOUT_S:g} s."
    return ApiError(504, message, code="timeout", type="server_error")
