"""SIGINT and SIGTERM: the first one stops a run gracefully, the second one at once.

SIGHUP, of a terminal that is gone, and SIGUSR1 stop it gracefully however often they arrive. A handler acts first and
reports afterwards: nobody may be there to read the report.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

STOPPED = 130
"""The exit code of a run that was stopped by a signal."""
STOP_REQUEST = signal.SIGUSR1
"""Stops a run gracefully however often it arrives: the hooks of several pods may send it."""


def hangup_signals() -> tuple[signal.Signals, ...]:
    """SIGHUP, unless it is ignored, as under `nohup`."""
    return () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)


class Signals:
    """Handles signals while entered.

    The first one calls the function given to `graceful`, or else cancels the task that entered; the second SIGINT or
    SIGTERM ends the process. `count` is the number of signals that counted.
    """

    def __init__(self) -> None:
        self.count = 0
        self._graceful: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        # A shell that loses its terminal sends SIGHUP to its jobs, and at its end the kernel sends it once more.
        self._once = (STOP_REQUEST, *hangup_signals())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._arrived)
        for number in self._once:
            asyncio.get_running_loop().add_signal_handler(number, self._requested)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, *self._once):
            asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(STOP_REQUEST, signal.SIG_IGN)  # a hook may still ask while the process ends, which would kill it

    @contextmanager
    def graceful(self, stop: Callable[[], None]) -> Iterator[None]:
        """While the block runs, the first signal calls `stop` instead of cancelling."""
        self._graceful.append(stop)
        try:
            yield
        finally:
            self._graceful.pop()

    def _requested(self) -> None:
        if not self.count:
            self._arrived()

    def _arrived(self) -> None:
        self.count += 1
        if self.count > 1:
            _end_immediately()
        if self._graceful:
            self._graceful[-1]()
        elif self._task is not None:
            self._task.cancel()
        _report("stopping gracefully; send the signal again to stop immediately")


async def wait_for_signal(ready: Callable[[], None]) -> None:
    """Wait for a signal to stop; `ready` is called once our handlers have replaced Ray's, which end the process."""
    stopped = asyncio.Event()
    with Signals() as signals, signals.graceful(stopped.set):
        ready()
        await stopped.wait()


def _end_immediately() -> None:
    try:
        import ray  # here, so that the command line can import STOPPED without Ray

        ray.shutdown()
        _report("stopped immediately")
    finally:
        os._exit(STOPPED)


def _report(text: str) -> None:
    with suppress(OSError, ValueError):  # nobody reads it
        print(text, file=sys.stderr)
