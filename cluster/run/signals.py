"""SIGINT and SIGTERM: the first one stops a run gracefully, the second one at once. SIGUSR1 is a first one only."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

STOPPED = 130
"""The exit code of a run that was stopped by a signal."""
STOP_REQUEST = signal.SIGUSR1
"""Stops a run gracefully however often it arrives: the hooks of several pods may send it."""


class Signals:
    """Handles signals while entered.

    The first one calls the function given to `graceful`, or else cancels the task that entered; the second one ends the
    process. `count` is the number of signals received.
    """

    def __init__(self) -> None:
        self.count = 0
        self._graceful: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._arrived)
        asyncio.get_running_loop().add_signal_handler(STOP_REQUEST, self._requested)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, STOP_REQUEST):
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
            print("stopped immediately", file=sys.stderr)
            import ray  # here, so that the command line can import STOPPED without Ray

            ray.shutdown()
            os._exit(STOPPED)
        print("stopping gracefully; send the signal again to stop immediately", file=sys.stderr)
        if self._graceful:
            self._graceful[-1]()
        elif self._task is not None:
            self._task.cancel()
