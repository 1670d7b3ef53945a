"""Signals stop a run gracefully once; a stop request may arrive several times."""

from __future__ import annotations

import asyncio
import os

from cluster.run.signals import STOP_REQUEST, Signals


async def test_a_request_to_stop_may_be_repeated() -> None:
    """The hooks of several pods send it, and a second SIGTERM would end the run before its checkpoint is written."""
    asked = asyncio.Queue[str]()
    with Signals() as signals, signals.graceful(lambda: asked.put_nowait("stop")):
        for _ in range(3):
            os.kill(os.getpid(), STOP_REQUEST)
            await asyncio.sleep(0)
        assert await asyncio.wait_for(asked.get(), 10) == "stop"
        handled = asyncio.Event()
        asyncio.get_running_loop().call_later(0, handled.set)
        await handled.wait()
    assert asked.empty()
    assert signals.count == 1
