"""More, equal requests where the first takes long: the first good answer wins, the other requests are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def hedged(
    first: Callable[[asyncio.Event], Coroutine[Any, Any, T]],
    again: Callable[[], Coroutine[Any, Any, T | None]],
    wait: Callable[[], Awaitable[None]],
    most: int,
) -> tuple[T, bool]:
    """The first good answer, and whether a hedge brought it. `first` sets the event when its request goes out. After
    each `wait` without a good answer `again` begins, `most` times at most; it gives None where it sends nothing.

    Raises:
        Exception: what `first` raised, where no good answer came.
    """
    sent = asyncio.Event()

    async def patience() -> None:
        await sent.wait()
        await wait()

    ours = asyncio.create_task(first(sent))
    requests: list[asyncio.Task[Any]] = [ours]
    timer = asyncio.create_task(patience())
    try:
        while running := [task for task in requests if not task.done()]:
            awaited = running if timer.done() else [*running, timer]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for task in requests:
                if task.done() and task.exception() is None and task.result() is not None:
                    return task.result(), task is not ours
            if timer.done() and not ours.done() and len(requests) <= most:
                requests.append(asyncio.create_task(again()))
                timer = asyncio.create_task(patience())
        return ours.result(), False
    finally:
        for task in (timer, *requests):
            task.cancel()
        await asyncio.gather(timer, *requests, return_exceptions=True)
