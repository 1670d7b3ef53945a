"""Expected errors cross Ray as values: an actor method returns its result or an RftError, and never raises one.

Ray would wrap a raised error in a class that it creates at runtime, with the remote traceback as its message and
different `args`; a returned error arrives unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from agent_rft.actors.runtime.telemetry.tracing import FLUSH_S
from agent_rft.errors import CannotStart, Discard, RftError

T = TypeVar("T")

DEADLINE_S = 3600.0
"""Timeout of calls whose work has shorter deadlines of its own: only a hung process reaches it."""
QUICK_S = 10.0
"""Timeout of calls that only look something up."""
RESTART_S = 60.0
"""Timeout of an actor's restart, which takes Ray about 3 s."""
IMPORT_FAILED = "failed to import on the worker"
"""Part of Ray's message when the actor's class cannot be imported."""
LOST, UNREACHABLE = "lost", "unreachable"
"""Kinds of error: the actor died; or its process does not respond, because it hangs or is restarting."""


async def outcome_of(work: Awaitable[T]) -> T | RftError:
    """In the actor: the result of `work`, or the RftError that it raised. Other errors are bugs and propagate."""
    try:
        return await work
    except RftError as error:
        return error


async def ask(ref: Any, what: str, lost: type[Discard], timeout_s: float | None = DEADLINE_S) -> Any:
    """In the caller: the result of the actor method behind the object reference `ref`.

    Cancelling this call, or its timeout, cancels the remote call. `what` names the actor in messages.

    Raises:
        RftError: the actor method returned one.
        CannotStart: the actor's `__init__` failed, and Ray will not restart it.
        Discard: an instance of `lost`: the actor died or did not answer within `timeout_s`.
    """
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            outcome = await result_of(ref)
    except RayTaskError:  # an unexpected error in the actor: a bug
        raise
    except RayError as error:
        if (never := cannot_start(error, what)) is not None:
            raise never from None
        name = type(error).__name__
        raise lost(f"the process of {what} was lost during a call ({name})", kind=kind_of(error)) from None
    except TimeoutError:
        if not deadline.expired():
            raise
        raise lost(f"{what} did not answer within {timeout_s:g} s", kind="late") from None
    if isinstance(outcome, RftError):
        raise outcome
    return outcome


def cannot_start(error: BaseException, what: str) -> CannotStart | None:
    """The error to raise if the actor's `__init__` failed; None for any other error."""
    if not isinstance(error, RayActorError) or not error.actor_init_failed:
        return None
    remedy = ""
    if IMPORT_FAILED in error.error_msg:
        remedy = "; install the driver's version of agent-rft and its dependencies on each node"
    why = error.error_msg.strip().splitlines()[-1]
    return CannotStart(f"{what} cannot start: {why}{remedy}", public=f"{what} cannot start{remedy}")


def kind_of(error: RayError) -> str:
    return UNREACHABLE if isinstance(error, ActorUnavailableError) else LOST


async def ask_helper(actor: Any, ref: Any, what: str, lost: type[Discard], timeout_s: float | None = DEADLINE_S) -> Any:
    """`ask` for an actor that Ray restarts: a death is raised once the actor answers again, so a retry can work."""
    try:
        return await ask(ref, what, lost, timeout_s)
    except Discard as error:
        if error.details.get("kind") in (LOST, UNREACHABLE):
            with suppress(Discard):
                await ask(actor.pulse.options(max_task_retries=-1).remote(), what, lost, RESTART_S)
        raise


async def result_of(ref: Any) -> Any:
    """The value behind the object reference. Cancelling this call cancels the remote call."""
    try:
        return await ref
    except asyncio.CancelledError:
        if ray.is_initialized():  # otherwise ray.shutdown() has already ended the call
            ray.cancel(ref)
        raise


async def flush_actors(actors: Iterable[Any]) -> None:
    """Let actors with a method `flush_traces` send their last spans; one that cannot in time loses them."""

    async def flush(actor: Any) -> None:
        with suppress(Discard, CannotStart):
            await ask(actor.flush_traces.remote(), "an actor with traces", Discard, FLUSH_S + QUICK_S)

    await asyncio.gather(*(flush(actor) for actor in actors))
