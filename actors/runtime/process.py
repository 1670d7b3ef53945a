"""Fast start and exit of processes that load torch or vLLM, and process priority when all cores of a node are busy."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

NICE_INCREMENT = 10
"""About a tenth of the CPU time of an engine or a learner that competes for the same core."""


@contextmanager
def importing() -> Iterator[None]:
    """Disable garbage collection during slow imports, where it takes a fifth of the time and finds nothing.

    Afterwards all existing objects are frozen, so that later full collections, which stop the process, skip them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def lower_priority() -> None:
    """Lower this process's CPU priority below that of engines and learners; child processes inherit it.

    For processes that do a little work all the time and would interrupt the steps of engines and learners.
    """
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has just ended
            os.setpriority(os.PRIO_PROCESS, int(thread), os.getpriority(os.PRIO_PROCESS, int(thread)) + NICE_INCREMENT)


def end_process(code: int) -> NoReturn:
    """Exit without interpreter teardown, which takes two seconds; to be called when everything is closed."""
    atexit._run_exitfuncs()
    with suppress(BrokenPipeError):  # the reader is gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
