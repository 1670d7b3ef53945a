"""Expected errors cross Ray as values: an actor method returns its result or the RftError, and never raises one.

Ray would wrap a raised error in a class made on the spot, with the remote traceback as its text and `args` that are
not ours; returned, it arrives as what it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from trainer.errors import CannotStart, Discard, RftError

T = TypeVar("T")

DEADLINE_S = 3600.0
"""Of calls that have deadlines inside, which come first: only a process that stands still reaches this one."""
QUICK_S = 10.0
"""Of calls that only look something up."""
RESTART_S = 60.0
"""Ray starts an actor anew in about 3 s."""
IMPORT_FAILED = "failed to import on the worker"
"""Ray's words."""
LOST, UNREACHABLE = "lost", "unreachable"
"""Kinds of error: the actor died, or its process cannot be spoken to: it stands still, or is being started anew."""


async def outcome_of(work: Awaitable[T]) -> T | RftError:
    """In the actor: the result of `work`, or the error that it raised on purpose. Other errors are bugs and go on."""
    try:
        return await work
    except RftError as error:
        return error


async def ask(ref: Any, what: str, lost: type[Discard], timeout_s: float = DEADLINE_S) -> Any:
    """In the caller: what the actor method behind the object reference gave. Cancelled or late, it cancels the remote
    call.

    Raises:
        RftError: the one that came back.
        CannotStart: the actor's `__init__` failed, so that Ray starts it no more.
        Discard: `lost`, where the actor died or did not answer in time; `what` names it.
    """
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            outcome = await result_of(ref)
    except RayTaskError:  # an error that nobody raised on purpose: a bug
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
    """What is to be said of an actor whose `__init__` failed; None of any other end."""
    if not isinstance(error, RayActorError) or not error.actor_init_failed:
        return None
    said = f"{what} cannot start: {error.error_msg.strip().splitlines()[-1]}"
    if IMPORT_FAILED in error.error_msg:
        said += "; install the driver's version of agent-rft on each node, with all that it needs"
    return CannotStart(said)


def kind_of(error: RayError) -> str:
    return UNREACHABLE if isinstance(error, ActorUnavailableError) else LOST


async def ask_helper(actor: Any, ref: Any, what: str, lost: type[Discard], timeout_s: float = DEADLINE_S) -> Any:
    """As `ask`, of an actor that Ray starts anew: that it died is said once it answers again, so that whoever tries
    anew finds it there.
    """
    try:
        return await ask(ref, what, lost, timeout_s)
    except Discard as error:
        if error.details.get("kind") in (LOST, UNREACHABLE):
            with suppress(Discard):
                await ask(actor.pulse.options(max_task_retries=-1).remote(), what, lost, RESTART_S)
        raise


async def result_of(ref: Any) -> Any:
    """What is behind the object reference. Cancelled, it cancels the remote call."""
    try:
        return await ref
    except asyncio.CancelledError:
        if ray.is_initialized():  # a driver that shut Ray down has ended the call with it
            ray.cancel(ref)
        raise
