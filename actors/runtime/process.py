"""The begin and the end of a process that loads torch or vLLM, each of which would take seconds more; and which
process goes first where a node's cores are all busy.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

BEHIND = 10
"""In nice values: a tenth of the processor time of an engine or a learner that wants the same core."""


@contextmanager
def importing() -> Iterator[None]:
    """Around imports that take seconds: looking for garbage takes a fifth of them, and there is none. Later full
    collections, in which all else waits, leave out what is there at the end.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def lower_priority() -> None:
    """Let engines and learners go first, which compute all the time: for a process with something to do at each moment,
    little at a time, that would break into their steps. What it starts from now on goes behind them too.
    """
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has just ended
            os.setpriority(os.PRIO_PROCESS, int(thread), os.getpriority(os.PRIO_PROCESS, int(thread)) + BEHIND)


def end_process(code: int) -> NoReturn:
    """Where all is closed and written: the interpreter would take two seconds to free what has been loaded."""
    atexit._run_exitfuncs()
    with suppress(BrokenPipeError):  # whoever read has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
