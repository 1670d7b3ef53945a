"""What an engine's failure is called: vLLM's errors of any class become EngineFailed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_rft.errors import EngineFailed

LOGS = (Path("/proc/self/fd/1"), Path("/proc/self/fd/2"))
"""Ray's log files of the worker: vLLM's own log has the errors of its processes, and Python writes those at a start."""
LOG_TAIL_BYTES = 1 << 16
ERROR_LINE = re.compile(
    r"^(?:\(\w+ pid=\d+\) ERROR .*?\] )?(?:[\w.]+\.)?(?!EngineDeadError)(\w+(?:Error|Exception): .+)$", re.M
)
"""An EngineDeadError only says that another line has the cause."""


class EngineDied(Exception):
    """The engine's process ended; its log says why."""


@contextmanager
def as_engine_failed(what: str) -> Iterator[None]:
    """Map vLLM's errors to EngineFailed."""
    try:
        yield
    except Exception as error:  # of any class: they come from vLLM's own processes
        why = f"{type(error).__name__}: {error}"
        # vLLM has no class of its own for a start that failed: "See root cause above", in the log.
        if isinstance(error, EngineDied) or "root cause" in why:
            why = next(filter(None, map(last_error, LOGS)), None) or "its process ended (killed, or out of memory)"
        raise EngineFailed(f"an engine could not {what}: {why}", public=f"an engine could not {what}") from error


def last_error(log: Path) -> str | None:
    """The last error in a log, by Python or vLLM, such as "ValueError: ..."; None if there is no file or no error."""
    if not log.is_file():
        return None
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
        found = ERROR_LINE.findall(file.read().decode(errors="replace"))
    return found[-1] if found else None
