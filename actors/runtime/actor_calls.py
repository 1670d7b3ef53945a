"""Calls to Ray actors. The actors' methods return expected errors (RftError) as values instead of raising them.

A returned error arrives unchanged. Ray would convert a raised error to another class, with other `args` and the remote
traceback as its message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from agent_rft.actors.runtime.telemetry.tracing import FLUSH_S
from agent_rft.errors import ActorStartFailed, DiscardError, RftError

T = TypeVar("T")

DEADLINE_S = 3600.0
"""Timeout of calls that have shorter deadlines inside the actor. It is reached only if the actor's process hangs."""
READ_TIMEOUT_S = 10.0
"""Timeout of calls that only read values."""
RESTART_S = 60.0
"""Timeout for restarting an actor. A restart takes about 3 s."""
IMPORT_FAILED = "failed to import on the worker"
"""Part of Ray's message when the actor's class cannot be imported."""
LOST, UNREACHABLE = "lost", "unreachable"
"""Kinds of errors. LOST: the actor died. UNREACHABLE: the actor does not respond, because it hangs or is restarting."""


async def return_errors(work: Awaitable[T]) -> T | RftError:
    """Await `work` in the actor; return its result, or the RftError that it raised. Other errors propagate."""
    try:
        return await work
    except RftError as error:
        return error


async def call_actor(
    ref: Any, actor_name: str, lost_error: type[DiscardError], timeout_s: float | None = DEADLINE_S
) -> Any:
    """Await the result of an actor call, given the call's object reference `ref`, and return it.

    If this call is cancelled or times out, the remote call is cancelled. `actor_name` is used in messages.

    Raises:
        RftError: The actor method returned this error.
        ActorStartFailed: The actor's `__init__` failed, and Ray will not restart it.
        DiscardError: The actor died or did not answer within `timeout_s`. The error is an instance of `lost_error`.
    """
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            outcome = await await_result(ref)
    except RayTaskError:  # an unexpected error in the actor: a bug
        raise
    except RayError as error:
        if (start_failure := find_start_error(error, actor_name)) is not None:
            raise start_failure from None
        error_name = type(error).__name__
        raise lost_error(
            f"the process of {actor_name} was lost during a call ({error_name})", kind=classify_ray_error(error)
        ) from None
    except TimeoutError:
        if not deadline.expired():
            raise
        raise lost_error(f"{actor_name} did not answer within {timeout_s:g} s", kind="late") from None
    if isinstance(outcome, RftError):
        raise outcome
    return outcome


def find_start_error(error: BaseException, actor_name: str) -> ActorStartFailed | None:
    """Return the error to raise if `error` means that the actor's `__init__` failed, else None."""
    if not isinstance(error, RayActorError) or not error.actor_init_failed:
        return None
    fix = ""
    if IMPORT_FAILED in error.error_msg:
        fix = "; on each node, install the same versions of agent-rft and of its dependencies as on the driver"
    why = error.error_msg.strip().splitlines()[-1]
    return ActorStartFailed(f"{actor_name} cannot start: {why}{fix}", public_message=f"{actor_name} cannot start{fix}")


def classify_ray_error(error: RayError) -> str:
    return UNREACHABLE if isinstance(error, ActorUnavailableError) else LOST


async def call_restartable_actor(
    actor: Any, ref: Any, actor_name: str, lost_error: type[DiscardError], timeout_s: float | None = DEADLINE_S
) -> Any:
    """Await an actor call like `call_actor`, for an actor that Ray restarts when it dies.

    If the actor dies, the error is raised after the restarted actor answers, so that a retry can succeed.
    """
    try:
        return await call_actor(ref, actor_name, lost_error, timeout_s)
    except DiscardError as error:
        if error.details.get("kind") in (LOST, UNREACHABLE):
            with suppress(DiscardError):
                await call_actor(
                    actor.heartbeat.options(max_task_retries=-1).remote(), actor_name, lost_error, RESTART_S
                )
        raise


async def await_result(ref: Any) -> Any:
    """Await the object reference and return its value. Cancelling this call cancels the remote call."""
    try:
        return await ref
    except asyncio.CancelledError:
        if ray.is_initialized():  # otherwise ray.shutdown() has already ended the call
            ray.cancel(ref)
        raise


async def flush_actor_traces(actors: Iterable[Any]) -> None:
    """Call `flush_traces` of all actors, so that they send their last spans; ignore actors that fail or time out."""

    async def flush(actor: Any) -> None:
        with suppress(DiscardError, ActorStartFailed):
            await call_actor(
                actor.flush_traces.remote(), "an actor with traces", DiscardError, FLUSH_S + READ_TIMEOUT_S
            )

    await asyncio.gather(*(flush(actor) for actor in actors))
