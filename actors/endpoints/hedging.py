"""Hedging: sends a slow request again, returns the first good answer and cancels the other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def send_with_hedges(
    send_first: Callable[[asyncio.Event], Coroutine[Any, Any, T]],
    send_hedge: Callable[[], Coroutine[Any, Any, T | None]],
    wait: Callable[[], Awaitable[None]],
    max_hedges: int,
) -> tuple[T, bool]:
    """Send a request, and repeat it while it is slow. Return the first good answer, and whether a hedge returned it.

    `send_first` sends the request, and then sets the event that is passed to it. If there is no good answer when `wait`
    completes, `send_hedge` sends the request again, at most `max_hedges` times. If `send_hedge` cannot send the
    request, it returns None.

    Raises:
        Exception: The error of `send_first`, if no hedge returned a good answer either.
    """
    sent = asyncio.Event()

    async def until_next_hedge() -> None:
        await sent.wait()
        await wait()

    original = asyncio.create_task(send_first(sent))
    requests: list[asyncio.Task[Any]] = [original]
    timer = asyncio.create_task(until_next_hedge())
    try:
        while running := [task for task in requests if not task.done()]:
            awaited = running if timer.done() else [*running, timer]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for task in requests:
                if task.done() and task.exception() is None and task.result() is not None:
                    return task.result(), task is not original
            if timer.done() and not original.done() and len(requests) <= max_hedges:
                requests.append(asyncio.create_task(send_hedge()))
                timer = asyncio.create_task(until_next_hedge())
        return original.result(), False
    finally:
        for task in (timer, *requests):
            task.cancel()
        await asyncio.gather(timer, *requests, return_exceptions=True)
