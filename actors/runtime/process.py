"""Fast start and exit of processes that load torch or vLLM, and limits and priority of processes."""

from __future__ import annotations

import atexit
import gc
import os
import resource
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


def limit_process(cpu_s: int, memory_bytes: int) -> None:
    """Limit this process: it is ended by SIGXCPU, or raises MemoryError."""
    for kind, limit in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_DATA, memory_bytes),  # not RLIMIT_AS: Ray maps far more than it uses
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (soft, hard))


def end_process(code: int) -> NoReturn:
    """Exit without interpreter teardown, which takes two seconds; to be called when everything is closed."""
    atexit._run_exitfuncs()
    with suppress(BrokenPipeError):  # the reader is gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
