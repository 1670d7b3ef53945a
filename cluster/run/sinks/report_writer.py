"""Writes the report of a run while it goes: in a process of the lowest priority, so rarely that it takes no time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agent_rft.events import Evaluated, StepDone
from agent_rft.run_events import RunEvent

SCRIPT = """
import os, sys
from pathlib import Path

os.nice(19)
from agent_rft.cluster.views.report.page import write_report
write_report(Path(sys.argv[1]))
"""
MIN_EVERY_S = 30.0
REST_FACTOR = 20
"""After a report nothing is written for this many times as long as it took: at most a twentieth of one core is used."""


class ReportWriter:
    """A Sink. Steps and evaluations have the report written again, unless the last one was written shortly before."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str] = (sys.executable, "-P", "-c", SCRIPT),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = [*command, str(folder)]
        self._clock = clock
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before = clock()
        self._closed = False

    def event(self, event: RunEvent) -> None:
        """Returns at once; a thread starts the process and waits for it."""
        if not isinstance(event.event, StepDone | Evaluated) or self._clock() < self._not_before:
            return
        self._not_before = float("inf")
        self._thread = threading.Thread(target=self._write, name="report", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End a report that is being written: the last one is written by the caller."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def settled(self) -> None:
        """Wait for a report that is being written."""
        if self._thread is not None:
            self._thread.join()

    def _write(self) -> None:
        began = self._clock()
        try:
            with self._lock:
                if self._closed:
                    return
                quiet = subprocess.DEVNULL
                self._process = subprocess.Popen(self._command, stdin=quiet, stdout=quiet, stderr=quiet)
            self._process.wait()
        except OSError:  # no memory, or too many processes: the report at the end says what is wrong
            pass
        now = self._clock()
        self._not_before = now + max(MIN_EVERY_S, REST_FACTOR * (now - began))
