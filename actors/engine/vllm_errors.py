"""Conversion of vLLM's errors, which may be of any class, to EngineFailed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_rft.errors import EngineFailed

LOGS = (Path("/proc/self/fd/1"), Path("/proc/self/fd/2"))
"""Log files that Ray keeps for this process. vLLM's processes also write their errors to these files."""
LOG_TAIL_BYTES = 1 << 16
ERROR_LINE = re.compile(
    r"^(?:\(\w+ pid=\d+\) ERROR .*?\] )?(?:[\w.]+\.)?(?!EngineDeadError)(\w+(?:Error|Exception): .+)$", re.M
)
"""Pattern of a log line with an error. An EngineDeadError does not match, because it does not contain the cause."""


class EngineDied(Exception):
    """A process of the engine has ended. The cause is in the log of the process."""


@contextmanager
def as_engine_failed(what: str) -> Iterator[None]:
    """Context manager that converts vLLM's errors to EngineFailed; `what` completes "an engine could not ..."."""
    try:
        yield
    except Exception as error:  # any class: the errors come from vLLM's processes
        why = f"{type(error).__name__}: {error}"
        # vLLM has no error class for a failed start. Its message refers to the log: "See root cause above".
        if isinstance(error, EngineDied) or "root cause" in why:
            why = (
                next(filter(None, map(find_last_error, LOGS)), None)
                or "the engine's process ended (killed, or out of memory)"
            )
        raise EngineFailed(
            f"an engine could not {what}: {why}", public_message=f"an engine could not {what}"
        ) from error


def find_last_error(log: Path) -> str | None:
    """Return the last error in a log, such as "ValueError: ..."; None if there is no error or no log."""
    if not log.is_file():
        return None
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
        found = ERROR_LINE.findall(file.read().decode(errors="replace"))
    return found[-1] if found else None
