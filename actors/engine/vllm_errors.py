"""Conversion of vLLM's errors, which may be of any class, to EngineFailed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_rft.errors import EngineFailed

LOGS = (Path("/proc/self/fd/1"), Path("/proc/self/fd/2"))
"""Ray's log files of the worker: vLLM logs the errors of its processes there, and Python its errors at start."""
LOG_TAIL_BYTES = 1 << 16
ERROR_LINE = re.compile(
    r"^(?:\(\w+ pid=\d+\) ERROR .*?\] )?(?:[\w.]+\.)?(?!EngineDeadError)(\w+(?:Error|Exception): .+)$", re.M
)
"""Matches the line with the cause, which an EngineDeadError only refers to."""


class EngineDied(Exception):
    """The engine's process ended; the cause is in its log."""


@contextmanager
def as_engine_failed(what: str) -> Iterator[None]:
    """Context manager that converts vLLM's errors to EngineFailed; `what` completes "an engine could not ..."."""
    try:
        yield
    except Exception as error:  # any class: the errors come from vLLM's processes
        why = f"{type(error).__name__}: {error}"
        # vLLM has no error class for a failed start. Its message refers to the log: "See root cause above".
        if isinstance(error, EngineDied) or "root cause" in why:
            why = next(filter(None, map(last_error, LOGS)), None) or "its process ended (killed, or out of memory)"
        raise EngineFailed(
            f"an engine could not {what}: {why}", public_message=f"an engine could not {what}"
        ) from error


def last_error(log: Path) -> str | None:
    """Return the last error in a log, such as "ValueError: ..."; None if the log has no error or does not exist."""
    if not log.is_file():
        return None
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
        found = ERROR_LINE.findall(file.read().decode(errors="replace"))
    return found[-1] if found else None
