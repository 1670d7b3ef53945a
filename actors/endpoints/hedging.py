"""Hedging: sends a slow request again, returns the first good answer and cancels the other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def send_with_hedges(
    first: Callable[[asyncio.Event], Coroutine[Any, Any, T]],
    again: Callable[[], Coroutine[Any, Any, T | None]],
    wait: Callable[[], Awaitable[None]],
    max_hedges: int,
) -> tuple[T, bool]:
    """Return the first good answer, and whether it came from a hedge.

    `first` sets the event when its request is sent. After each `wait` without a good answer, `again` sends a hedge, at
    most `max_hedges` times. `again` returns None if it sends nothing.

    Raises:
        Exception: `first` raised it, and no hedge returned a good answer.
    """
    sent = asyncio.Event()

    async def until_next_hedge() -> None:
        await sent.wait()
        await wait()

    original = asyncio.create_task(first(sent))
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
                requests.append(asyncio.create_task(again()))
                timer = asyncio.create_task(until_next_hedge())
        return original.result(), False
    finally:
        for task in (timer, *requests):
            task.cancel()
        await asyncio.gather(timer, *requests, return_exceptions=True)
