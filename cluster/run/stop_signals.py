"""Stop signals of a run: the first SIGINT or SIGTERM stops the run gracefully, and the second stops it immediately.

SIGHUP (the terminal was closed) and SIGUSR1 stop the run gracefully, however often they arrive. A handler stops the run
before it prints, because printing fails if the terminal is closed.
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

STOPPED_EXIT_CODE = 130
"""Exit code of a run that was stopped by a signal."""
STOP_REQUEST = signal.SIGUSR1
"""Signal that requests a graceful stop.

The hooks of several pods may each send this signal. Repeated signals have no effect."""


def hangup_signals() -> tuple[signal.Signals, ...]:
    """Return a tuple with SIGHUP, or an empty tuple if SIGHUP is ignored, as under `nohup`."""
    return () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)


class StopSignals:
    """Context manager that handles stop signals.

    The first signal cancels the current task. Inside the context manager `on_first(stop)`, the first signal calls
    `stop` instead. A second SIGINT or SIGTERM ends the process. Later SIGHUP and SIGUSR1 signals are ignored. `count`
    is the number of signals that were not ignored.
    """

    def __init__(self) -> None:
        self.count = 0
        self._callbacks: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        # When a terminal closes, the shell sends SIGHUP to its jobs; when the shell exits, the kernel sends it again.
        self._uncounted = (STOP_REQUEST, *hangup_signals())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        for number in self._uncounted:
            asyncio.get_running_loop().add_signal_handler(number, self._on_stop_request)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, *self._uncounted):
            asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(STOP_REQUEST, signal.SIG_IGN)  # a hook may send it while the process exits

    @contextmanager
    def on_first(self, stop: Callable[[], None]) -> Iterator[None]:
        """Context manager in which the first signal calls `stop` instead of cancelling the task."""
        self._callbacks.append(stop)
        try:
            yield
        finally:
            self._callbacks.pop()

    def _on_stop_request(self) -> None:
        if not self.count:
            self._on_signal()

    def _on_signal(self) -> None:
        self.count += 1
        if self.count > 1:
            _end_immediately()
        if self._callbacks:
            self._callbacks[-1]()
        elif self._task is not None:
            self._task.cancel()
        _print_message("stopping gracefully; send the signal again to stop immediately")


async def wait_for_signal(ready: Callable[[], None]) -> None:
    """Install our signal handlers, call `ready`, and wait for a stop signal.

    Our handlers replace the handlers of Ray, which would end the process.
    """
    stopped = asyncio.Event()
    with StopSignals() as signals, signals.on_first(stopped.set):
        ready()
        await stopped.wait()


def _end_immediately() -> None:
    try:
        import ray  # here, so that the command line can import STOPPED_EXIT_CODE without Ray

        ray.shutdown()
        _print_message("stopped immediately")
    finally:
        os._exit(STOPPED_EXIT_CODE)


def _print_message(text: str) -> None:
    with suppress(OSError, ValueError):  # stderr is closed
        print(text, file=sys.stderr)
