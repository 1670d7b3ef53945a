"""Setup of a process: standard streams, resource limits and CPU priority.

It also makes import and exit faster in processes that load torch or vLLM.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Literal, NoReturn

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NICE_INCREMENT = 10
"""Increment of a process's nice value. If the process shares a core with an engine or learner, it gets about a tenth
of the CPU time that the engine or learner gets."""


@contextmanager
def fast_imports() -> Iterator[None]:
    """Context manager that speeds up imports by disabling garbage collection.

    At the end, all objects are frozen (`gc.freeze`), so that later collections skip them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def lower_priority() -> None:
    """Lower this process's CPU priority below that of engines and learners; child processes inherit it.

    Call this in processes that do a little work all the time, so that they do not interrupt engines and learners.
    """
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has just ended
            os.setpriority(os.PRIO_PROCESS, int(thread), os.getpriority(os.PRIO_PROCESS, int(thread)) + NICE_INCREMENT)


def limit_process(cpu_s: int, memory_bytes: int) -> None:
    """Limit the CPU time and memory of this process, and disable core dumps.

    Above the limits, the process gets SIGXCPU or raises MemoryError.
    """
    for kind, limit in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_DATA, memory_bytes),  # not RLIMIT_AS: Ray maps far more than it uses
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (soft, hard))


def end_process(code: int) -> NoReturn:
    """Exit without interpreter teardown, which takes two seconds. Call this after all resources are closed."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(BrokenPipeError):  # the reader has closed the pipe
                stream.flush()
    os._exit(code)


# -- standard files ----------------------------------------------------------------------------------------------------


def open_standard_files() -> None:
    """Open /dev/null in place of standard streams that were closed when this process started.

    Otherwise, the next file that is opened, such as a socket or a checkpoint, gets the descriptor of a closed stream.
    Libraries and child processes would then print into that file.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def drop_lost_output(name: Literal["stdout", "stderr"]) -> None:
    """Replace a standard stream of this process with a stream that drops output it cannot write.

    Writing fails if the reader or the terminal was closed, or if the disk is full.
    """
    stream, number = getattr(sys, name), {"stdout": 1, "stderr": 2}[name]
    if stream is not getattr(sys, f"__{name}__"):
        return  # the stream was replaced, for example to capture output
    if stream is not None:
        with suppress(OSError):
            stream.flush()
    buffer = io.BufferedWriter(_LossyFile(number, "w", closefd=False))
    encoding, errors = ("utf-8", "replace") if stream is None else (stream.encoding, stream.errors)
    setattr(sys, name, io.TextIOWrapper(buffer, encoding, errors, line_buffering=True))


class _LossyFile(io.FileIO):
    """File that drops output it cannot write."""

    def write(self, data: ReadableBuffer, /) -> int:
        with suppress(OSError):
            if (written := super().write(data)) is not None:  # None: the file is non-blocking and full
                return written
        return memoryview(data).nbytes
