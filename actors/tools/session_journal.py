"""Which sessions are open at the user's server, on disk: a process that was killed finds them again.

A line is written before a session is asked for, and after the server has heard that it ended. What is open here may
be open there; what is not, is not. Lines reach the system at once, which outlives the process (not the machine).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

COMPACT_AFTER = 10_000
"""So many sessions that have ended may stand in the file (about a megabyte)."""


class SessionJournal:
    """An append-only file of one process. What cannot be read of it (a line torn by a kill) was never acted upon."""

    def __init__(self, path: Path) -> None:
        """Raises:
        OSError: the file cannot be written.
        """
        self._path = path
        self._open = _read(path)
        self._file = self._compact()

    @property
    def open(self) -> list[str]:
        """Trace ids of the sessions that may be open, oldest first."""
        return list(self._open)

    def started(self, trace_id: str) -> None:
        """Raises:
        OSError: it is not written, so the session must not be asked for.
        """
        self._write("start", trace_id)
        self._open[trace_id] = None

    def ended(self, trace_id: str) -> None:
        """Raises:
        OSError: it is not written; after a restart the session would be ended once more, which does no harm.
        """
        self._open.pop(trace_id, None)
        self._write("end", trace_id)
        self._ended += 1
        if self._ended >= COMPACT_AFTER:
            before, self._file = self._file, self._compact()
            os.close(before)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, what: str, trace_id: str) -> None:
        """One line. It begins with a line break too, so that a torn one (a full disk) spoils only itself."""
        line = b"\n" + json.dumps({what: trace_id}).encode() + b"\n"
        if os.write(self._file, line) < len(line):
            raise OSError(f"{self._path.name}: the disk took only a part of a line")

    def _compact(self) -> int:
        """Write the open ones to a new file that takes the place of the old one; where it goes on."""
        self._ended = 0
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(self._path.name + ".new")
        beside.write_text("".join(json.dumps({"start": trace_id}) + "\n" for trace_id in self._open))
        beside.replace(self._path)
        return os.open(self._path, os.O_WRONLY | os.O_APPEND)


def _read(path: Path) -> dict[str, None]:
    """Trace ids that were started and not ended."""
    found: dict[str, None] = {}
    lines = path.read_bytes().splitlines() if path.exists() else []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "start" in entry:
            found[str(entry["start"])] = None
        elif isinstance(entry, dict):
            found.pop(str(entry.get("end")), None)
    return found
