"""The begin and the end of a process that loads torch or vLLM, each of which would take seconds more."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn


@contextmanager
def importing() -> Iterator[None]:
    """Around imports that take seconds: looking for garbage takes a fifth of them, and there is none. Later full
    collections, in which all else waits, leave out what is there at the end."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def end_process(code: int) -> NoReturn:
    """Where all is closed and written: the interpreter would take two seconds to free what has been loaded."""
    atexit._run_exitfuncs()
    with suppress(BrokenPipeError):  # whoever read has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
