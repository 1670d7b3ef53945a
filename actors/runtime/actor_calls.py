"""Calls of Ray actor methods, which return expected errors (RftError) as values instead of raising them.

Ray wraps a raised error in a class created at runtime, with the remote traceback as its message and different `args`. A
returned error arrives unchanged.
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
"""Timeout of calls that have shorter deadlines inside the actor, so only a hung process reaches it."""
READ_TIMEOUT_S = 10.0
"""Timeout of calls that only read values."""
RESTART_S = 60.0
"""Timeout of an actor's restart, which takes about 3 s."""
IMPORT_FAILED = "failed to import on the worker"
"""Part of Ray's message when the actor's class cannot be imported."""
LOST, UNREACHABLE = "lost", "unreachable"
"""Error kinds: the actor died; the actor does not respond because it hangs or restarts."""


async def return_errors(work: Awaitable[T]) -> T | RftError:
    """Await `work` in the actor; return its result, or the RftError that it raised. Other errors propagate."""
    try:
        return await work
    except RftError as error:
        return error


async def call_actor(ref: Any, what: str, lost: type[DiscardError], timeout_s: float | None = DEADLINE_S) -> Any:
    """Await the object reference of an actor call in the caller, and return its result.

    Cancellation and timeout of this call cancel the remote call. `what` names the actor in messages.

    Raises:
        RftError: The actor method returned this error.
        ActorStartFailed: The actor's `__init__` failed, and Ray will not restart it.
        Discard: An instance of `lost`: the actor died or did not answer within `timeout_s`.
    """
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            outcome = await await_result(ref)
    except RayTaskError:  # an unexpected error in the actor: a bug
        raise
    except RayError as error:
        if (never := start_error(error, what)) is not None:
            raise never from None
        name = type(error).__name__
        raise lost(f"the process of {what} was lost during a call ({name})", kind=error_kind(error)) from None
    except TimeoutError:
        if not deadline.expired():
            raise
        raise lost(f"{what} did not answer within {timeout_s:g} s", kind="late") from None
    if isinstance(outcome, RftError):
        raise outcome
    return outcome


def start_error(error: BaseException, what: str) -> ActorStartFailed | None:
    """Return the error to raise if the actor's `__init__` failed; None for any other error."""
    if not isinstance(error, RayActorError) or not error.actor_init_failed:
        return None
    fix = ""
    if IMPORT_FAILED in error.error_msg:
        fix = "; install the driver's version of agent-rft and its dependencies on each node"
    why = error.error_msg.strip().splitlines()[-1]
    return ActorStartFailed(f"{what} cannot start: {why}{fix}", public_message=f"{what} cannot start{fix}")


def error_kind(error: RayError) -> str:
    return UNREACHABLE if isinstance(error, ActorUnavailableError) else LOST


async def call_restartable_actor(
    actor: Any, ref: Any, what: str, lost: type[DiscardError], timeout_s: float | None = DEADLINE_S
) -> Any:
    """Call `ask` for an actor that Ray restarts.

    If the actor dies, the error is raised after the restarted actor answers, so that a retry can succeed.
    """
    try:
        return await call_actor(ref, what, lost, timeout_s)
    except DiscardError as error:
        if error.details.get("kind") in (LOST, UNREACHABLE):
            with suppress(DiscardError):
                await call_actor(actor.heartbeat.options(max_task_retries=-1).remote(), what, lost, RESTART_S)
        raise


async def await_result(ref: Any) -> Any:
    """Await the object reference and return its value. Cancelling this call cancels the remote call."""
    try:
        return await ref
    except asyncio.CancelledError:
        if ray.is_initialized():  # otherwise ray.shutdown() has already ended the call
            ray.cancel(ref)
        raise


async def flush_actors(actors: Iterable[Any]) -> None:
    """Let actors with a method `flush_traces` send their last spans, and ignore actors that fail or time out."""

    async def flush(actor: Any) -> None:
        with suppress(DiscardError, ActorStartFailed):
            await call_actor(
                actor.flush_traces.remote(), "an actor with traces", DiscardError, FLUSH_S + READ_TIMEOUT_S
            )

    await asyncio.gather(*(flush(actor) for actor in actors))
