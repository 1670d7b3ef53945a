"""Signals stop a run gracefully once; a stop request and a lost terminal may arrive several times."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from agent_rft.cluster.run.stop_signals import STOP_REQUEST, StopSignals


@pytest.fixture
def hangup() -> Iterator[None]:
    """Restores what SIGHUP does."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


async def handled() -> None:
    """Wait until the signals that this process has received are handled."""
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(0, done.set)
    await done.wait()


async def test_a_request_to_stop_may_be_repeated() -> None:
    """The hooks of several pods send it, and a second SIGTERM would end the run before its checkpoint is written."""
    asked = asyncio.Queue[str]()
    with StopSignals() as signals, signals.on_first(lambda: asked.put_nowait("stop")):
        for _ in range(3):
            os.kill(os.getpid(), STOP_REQUEST)
            await asyncio.sleep(0)
        assert await asyncio.wait_for(asked.get(), 10) == "stop"
        await handled()
    assert asked.empty()
    assert signals.count == 1


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGHUP])
async def test_a_lost_terminal_is_no_second_signal(first: signal.Signals, hangup: None) -> None:
    """A shell sends SIGHUP to its jobs, and the kernel once more when the shell has ended."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    stops = 0

    def stop() -> None:
        nonlocal stops
        stops += 1

    with StopSignals() as signals, signals.on_first(stop):
        for number in (first, signal.SIGHUP, signal.SIGHUP):
            os.kill(os.getpid(), number)
            await handled()
    assert (signals.count, stops) == (1, 1)


async def test_a_command_under_nohup_goes_on_without_its_terminal(hangup: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        await handled()
    assert signals.count == 0
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
