"""On-demand model serving. Each model is served by a Ray Serve application, which all calls and API replicas share.

LoRA adapters of the same base model share an application. While this application runs, it also serves the base model.
Otherwise, the base model gets a separate application.

The life cycle of an application (see `AppState`):

             first call              engine is up
    (none) -------------> STARTING ---------------> RUNNING
      ^                    |    |                      |
      |       start failed |    | not up within        | idle for `idle_s`, or idle
      |                    v    | START_TIMEOUT_S      | while another model or a job waits
      |                 FAILED  |                      |
      |    failure noticed |    |                      |
      |                    v    v                      |
      +----------------- STOPPING <--------------------+
      all calls finished

At most `max_models` applications exist. If a call needs one more application, the call waits until an application is
idle. Then the application that has been idle longest is removed. The first call for a model waits until an engine has
started. After `max_start_wait_s`, waiting calls fail with a 503 and a Retry-After header. An application finishes its
calls before it is removed. The states are always read from Ray Serve, so any API replica can take over from a replica
that died.

A model that has been idle for RELEASE_IDLE_S is stopped if this frees the resources that a waiting job needs. If jobs
hold or wait for the resources that a model needs, a call for the model gets a 503 that names the jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeVar

from agent_rft.actors.engine.chat.chat_model import Refusal
from agent_rft.actors.runtime.timing import REAL_TIMING, Timing
from agent_rft.errors import EngineFailed, UserError
from agent_rft.serve.http.error_responses import internal_error
from agent_rft.serve.stores.database import is_unavailable
from agent_rft.serve.stores.model_registry import ModelCatalog, ModelRecord, UnknownModel
from agent_rft.spec.operator.operator_config import EngineLimits
from agent_rft.wire.api_errors import ApiError

T = TypeVar("T")

ANSWER_TIMEOUT_S = 600.0
START_TIMEOUT_S = 600.0
POLL_S = 0.25
"""Polling interval of application states, in seconds."""
FRESH_S = 2.0
"""Seconds for which a RUNNING state is trusted. An older state is read again."""
RELEASE_IDLE_S = 15.0
"""Seconds that an engine must be idle before it is stopped for a waiting job."""
RELEASE_POLL_S = 2.0
"""Maximum seconds between checks for jobs that wait for resources."""
MIN_IDLE_S = 1.0
"""Seconds that an engine must be idle before it is stopped for another model.

The wait lets calls that are already on their way reach the engine."""
MAX_NAMED_RUNS = 5
RETRY_AFTER_S = 10
"""Seconds in the Retry-After header of a 503 response."""

log = logging.getLogger("agent_rft.serve")


class ModelServer(Protocol):
    """Interface for answering validated chat completion requests with the model `body["model"]`.

    Raises:
        ApiError: The model does not exist, its engine does not start in time, or the engine refuses the request.
    """

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the complete chat completion."""

    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Return the chunks of the chat completion.

        If the request is refused, this method raises. Later errors are raised by the iterator.
        """


class AppState(Enum):
    """The state of a model's application."""

    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"
    STOPPING = "stopping"


class NotServed(Exception):
    """The model's application no longer exists, or has just been replaced by another one."""


Answers = AsyncGenerator[dict[str, Any] | Refusal | None]


class ModelHosting(Protocol):
    """Interface for starting, stopping and calling model applications. Implemented by `model_apps.RayServeModels`."""

    def app_names(self, record: ModelRecord) -> Sequence[str]:
        """Return the names of the applications that can serve a model; blocks for milliseconds.

        If no application is running, the caller starts the last one in the list. All aliases of a model share these
        applications.

        Raises:
            UserError: The model's folder is damaged.
        """

    async def states(self) -> dict[str, AppState]:
        """Return the states of all model applications, by name."""

    async def deploy(self, name: str, record: ModelRecord) -> None:
        """Start the application without waiting for it."""

    async def remove(self, name: str) -> None:
        """Stop the application without waiting for it; it finishes the answers in progress."""

    async def idle_s(self, name: str) -> float | None:
        """Return the seconds since the application's last call ended, 0 during a call, or None if unknown."""

    async def blocking_runs(self) -> Sequence[str]:
        """Return the names of the runs that hold or wait for the resources that a new engine needs.

        The list is empty if there are enough resources, or if the cluster adds nodes on demand.
        """

    async def has_waiting_run(self) -> bool:
        """Return whether a run is waiting for cluster resources."""

    async def apps_to_release(self, idle_s: Mapping[str, float]) -> Sequence[str]:
        """Return the idle applications that must stop so that a waiting run can start.

        Args:
            idle_s: Idle seconds by application.
        """

    def answer(self, name: str, record: ModelRecord, body: Mapping[str, Any], *, stream: bool) -> Answers:
        """Yield None as soon as an engine has accepted the request, then the answer or, with `stream`, its chunks.

        Closing the generator cancels the request.

        Raises:
            NotServed: The application does not exist.
            DamagedModel: The model's folder is damaged.
            EngineFailed: The engine failed.
        """


@dataclass(slots=True)
class ServedModels:
    """ModelServer that starts and stops applications on demand.

    `lock_apps` returns a context manager that lets only one API replica at a time start and stop applications.
    """

    models: ModelCatalog
    hosting: ModelHosting
    limits: EngineLimits = field(default_factory=EngineLimits)
    lock_apps: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext
    timing: Timing = REAL_TIMING
    release_idle_s: float = RELEASE_IDLE_S
    _states: dict[str, AppState] = field(default_factory=dict)
    _seen_at: float = -math.inf
    _starting_since: dict[str, float] = field(default_factory=dict)
    _called: Counter[str] = field(default_factory=Counter)
    """Number of calls that wait for an engine, by application. A call counts for each application that can serve it."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        async with self._open_answers(body, stream=False) as answers:
            answer = await _next_answer(answers)
        return {**_raise_if_refused(answer), "model": body["model"]}

    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        chunks = self._chunks(body)
        try:
            first = await anext(chunks)
        except StopAsyncIteration:
            raise _unavailable_error("The model returned an empty answer.") from None

        async def all_chunks() -> AsyncIterator[dict[str, Any]]:
            async with contextlib.aclosing(chunks):
                yield first
                async for chunk in chunks:
                    yield chunk

        return all_chunks()

    async def _chunks(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        async with self._open_answers(body, stream=True) as chunks:
            while True:
                try:
                    chunk = await _next_answer(chunks)
                except StopAsyncIteration:
                    return
                yield {**_raise_if_refused(chunk), "model": body["model"]}

    async def run(self) -> None:
        """Remove idle models periodically until cancelled."""
        reap_every_s = self.limits.idle_s / 10
        reaped = self.timing.clock()
        while True:
            await self.timing.sleep(min(reap_every_s, RELEASE_POLL_S))
            try:
                await self._finish(self._release())
                if self.timing.clock() - reaped >= reap_every_s:
                    reaped = self.timing.clock()
                    await self._finish(self._reap())
            except Exception as error:  # from Ray Serve or the database; the next iteration retries
                trace = None if is_unavailable(error) else error
                log.error("idle models were not removed; trying again", exc_info=trace)

    # -- a call --------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _open_answers(self, body: Mapping[str, Any], *, stream: bool) -> AsyncIterator[Answers]:
        """Context manager that yields the answers of an engine that has accepted the request."""
        try:
            record = await asyncio.to_thread(self.models.resolve, body["model"])
        except UnknownModel as error:
            raise ApiError(404, error.message, param="model", code="model_not_found") from None
        try:
            names = await asyncio.to_thread(self.hosting.app_names, record)
            answers = await self._start_answer(names, record, body, stream)
            async with contextlib.aclosing(answers):
                yield answers
        except UserError as error:
            message = f"The model '{record.id}' cannot be served: {error.public_message}."
            cause = f"{record.id} cannot be served: {error}"
            raise ApiError(400, message, param="model", code="model_damaged", cause=cause) from None
        except NotServed:
            raise _unavailable_error("The model's engine was stopped.") from None
        except EngineFailed as error:
            raise _unavailable_error(
                "The model's engine failed.", f"the engine of {record.id} failed: {error}"
            ) from None

    async def _start_answer(
        self, names: Sequence[str], record: ModelRecord, body: Mapping[str, Any], stream: bool
    ) -> Answers:
        self._called.update(names)
        try:
            async with asyncio.timeout(self.limits.max_start_wait_s):
                while True:
                    name = await self._wait_for_model(names, record)
                    answers = self.hosting.answer(name, record, body, stream=stream)
                    try:
                        await anext(answers)
                        return answers
                    except NotServed:
                        self._seen_at = -math.inf
                        await self.timing.sleep(POLL_S)
        except TimeoutError:
            if names[-1] in self._states:
                raise _unavailable_error("The model is starting.") from None
            max_models = self.limits.max_models
            message = f"This server runs at most {max_models} models at a time, and all of them are busy."
            raise _unavailable_error(message) from None
        finally:
            self._called.subtract(names)

    async def _wait_for_model(self, names: Sequence[str], record: ModelRecord) -> str:
        name = self._first_in_state(names, AppState.RUNNING) if self._states_age_s() < FRESH_S else None
        while name is None:
            await self._finish(self._advance(names, record))
            if (name := self._first_in_state(names, AppState.RUNNING)) is None:
                await self.timing.sleep(POLL_S)
        return name

    def _first_in_state(self, names: Sequence[str], state: AppState) -> str | None:
        return next((name for name in names if self._states.get(name) is state), None)

    async def _advance(self, names: Sequence[str], record: ModelRecord) -> None:
        """Take the next step to start the model, such as deploying it or stopping an idle model.

        Do nothing if the states of the applications were read less than POLL_S seconds ago.
        """
        async with self._lock:
            if self._states_age_s() < POLL_S:
                return
            async with self._current_states():
                if self._first_in_state(names, AppState.RUNNING) or self._first_in_state(names, AppState.STARTING):
                    return
                name = names[-1]
                state = self._states.get(name)
                if state is AppState.FAILED:
                    await self._remove(name)
                    raise _unavailable_error("The model's engine did not start.")
                if state is None and len(self._states) < self.limits.max_models:
                    if runs := await self.hosting.blocking_runs():
                        raise _no_resources_error(runs)
                    await self.hosting.deploy(name, record)
                    self._states[name] = AppState.STARTING
                elif state is None and AppState.STOPPING not in self._states.values():
                    await self._evict_idle()

    # -- which models are served ---------------------------------------------------------------------------------------

    async def _finish(self, step: Coroutine[Any, Any, T]) -> T:
        """Complete `step` even if the caller is cancelled, so that the states stay consistent."""
        task = asyncio.ensure_future(step)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    @contextlib.asynccontextmanager
    async def _current_states(self) -> AsyncIterator[None]:
        """Context manager that reads the states. Until it exits, other API replicas cannot change them."""
        async with self.lock_apps():
            self._states = await self.hosting.states()
            self._seen_at = self.timing.clock()
            yield

    def _states_age_s(self) -> float:
        return self.timing.clock() - self._seen_at

    async def _evict_idle(self) -> None:
        found = await self._idle_seconds()
        if found and max(found.values()) >= MIN_IDLE_S:
            await self._remove(max(found, key=lambda name: found[name]))

    async def _idle_seconds(self) -> dict[str, float]:
        """Return the idle seconds by application name. Applications with waiting calls are omitted."""
        running = [name for name, state in self._states.items() if state is AppState.RUNNING and not self._called[name]]
        idle = await asyncio.gather(*(self.hosting.idle_s(name) for name in running))
        return {name: idle_s for name, idle_s in zip(running, idle, strict=True) if idle_s is not None}

    async def _remove(self, name: str) -> None:
        await self.hosting.remove(name)
        self._states[name] = AppState.STOPPING

    async def _release(self) -> None:
        """Stop idle models whose resources a waiting job needs."""
        if not self._states or not await self.hosting.has_waiting_run():
            return  # the replica that deployed a model releases it, or `_reap` removes it
        async with self._lock, self._current_states():
            idle_s_by_name = await self._idle_seconds()
            idle = {name: idle_s for name, idle_s in idle_s_by_name.items() if idle_s >= self.release_idle_s}
            if idle:
                for name in await self.hosting.apps_to_release(idle):
                    await self._remove(name)

    async def _reap(self) -> None:
        async with self._lock, self._current_states():
            now = self.timing.clock()
            for name, idle_s in (await self._idle_seconds()).items():
                if idle_s >= self.limits.idle_s:
                    await self._remove(name)
            waiting = [name for name, state in self._states.items() if state in (AppState.STARTING, AppState.FAILED)]
            self._starting_since = {name: self._starting_since.get(name, now) for name in waiting}
            for name, since in self._starting_since.items():
                if self._states[name] is AppState.FAILED or now - since > START_TIMEOUT_S:
                    log.error("removing the model application %s, which did not start", name)
                    await self._remove(name)


async def _next_answer(answers: Answers) -> dict[str, Any] | Refusal:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answer = await anext(answers)
    except TimeoutError:
        message = f"The model did not answer within {ANSWER_TIMEOUT_S:g} s."
        raise ApiError(504, message, code="timeout", type="server_error") from None
    assert answer is not None
    return answer


def _raise_if_refused(answer: dict[str, Any] | Refusal) -> dict[str, Any]:
    if not isinstance(answer, Refusal):
        return answer
    if answer.status >= 500:
        raise internal_error(f"the engine failed to answer: {answer.message}")
    raise ApiError(answer.status, answer.message, param=answer.param, code=answer.code)


def _no_resources_error(runs: Sequence[str]) -> ApiError:
    shown = ", ".join(runs[:MAX_NAMED_RUNS])
    return _unavailable_error(f"The model cannot start, because fine-tuning jobs use the needed resources: {shown}.")


def _unavailable_error(why: str, cause: str = "") -> ApiError:
    message = f"{why} Please try again in {RETRY_AFTER_S} s."
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return ApiError(503, message, code="model_unavailable", type="server_error", headers=headers, cause=cause)
