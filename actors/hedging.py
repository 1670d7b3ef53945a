"""A second, equal request where the first takes long: the first good answer wins, the other request is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def hedged(
    first: Callable[[asyncio.Event], Coroutine[Any, Any, T]],
    second: Callable[[], Coroutine[Any, Any, T | None]],
    wait: Callable[[], Awaitable[None]],
) -> tuple[T, bool]:
    """The first good answer, and whether it was the second's. `first` sets the event when its request goes out; where
    it has not ended after `wait`, `second` begins, which gives None where it sends nothing.

    Raises:
        Exception: what `first` raised, where no good answer came.
    """
    sent = asyncio.Event()

    async def patience() -> None:
        await sent.wait()
        await wait()

    ours = asyncio.create_task(first(sent))
    tasks: list[asyncio.Task[Any]] = [ours, asyncio.create_task(patience())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if ours.done():
            return ours.result(), False
        other = asyncio.create_task(second())
        tasks.append(other)
        running: set[asyncio.Task[Any]] = {ours, other}
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.exception() is None and task.result() is not None:
                    return task.result(), task is other
        return ours.result(), False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
