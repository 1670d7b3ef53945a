"""Updates of a run's report, written by a low-priority process that runs rarely enough to cost almost nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agent_rft.events import Evaluated, StepDone
from agent_rft.stored_events import RunEvent

SCRIPT = """
import os, sys
from pathlib import Path

os.nice(19)
from agent_rft.cluster.views.report.report_page import write_report
write_report(Path(sys.argv[1]))
"""
MIN_EVERY_S = 30.0
REST_FACTOR = 20
"""Pause after each report, as a multiple of the time that the report took. Reports use at most 5% of a CPU core."""


class ReportWriter:
    """Sink that writes the report again after steps and evaluations, unless the last report is recent."""

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

    def handle_event(self, event: RunEvent) -> None:
        """Start a thread that runs the report process, if the report must be written again; return immediately."""
        if not isinstance(event.event, StepDone | Evaluated) or self._clock() < self._not_before:
            return
        self._not_before = float("inf")
        self._thread = threading.Thread(target=self._write, name="report", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Kill the process that is writing a report, if any. The caller writes the last report itself."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def wait(self) -> None:
        """Wait until the report in progress is written."""
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
        except OSError:  # no memory, or too many processes; the report is written again at the end
            pass
        now = self._clock()
        self._not_before = now + max(MIN_EVERY_S, REST_FACTOR * (now - began))
