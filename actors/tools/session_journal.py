"""Journal file of the tool sessions that may be open at the user's server, so that a new process can end them.

A line is written before a session is requested, and another line after the server has confirmed the session's end. Only
sessions that are open in the journal can be open at the server. Lines are written without buffering: they survive if
the process is killed, but not if the node crashes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

COMPACT_AFTER = 10_000
"""Number of ended sessions (about 1 MB of lines) after which the file is compacted."""


class ToolSessionJournal:
    """Append-only journal file of one process. Incomplete lines are ignored."""

    def __init__(self, path: Path) -> None:
        """Open the journal, and read the sessions that an earlier process left open.

        Raises:
            OSError: The file cannot be written.
        """
        self._path = path
        self._open = _read(path)
        self._file = self._compact()

    @property
    def open_sessions(self) -> list[str]:
        """Trace ids of the sessions that may be open, oldest first."""
        return list(self._open)

    def record_start(self, trace_id: str) -> None:
        """Record that a session is about to be requested.

        Raises:
            OSError: The session was not recorded, so it must not be requested.
        """
        self._write("start", trace_id)
        self._open[trace_id] = None

    def record_end(self, trace_id: str) -> None:
        """Record that the server has confirmed a session's end.

        Raises:
            OSError: The end was not recorded, so after a restart the session is ended again, which is harmless.
        """
        self._open.pop(trace_id, None)
        self._write("end", trace_id)
        self._ended += 1
        if self._ended >= COMPACT_AFTER:
            old, self._file = self._file, self._compact()
            os.close(old)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, what: str, trace_id: str) -> None:
        """Write one line. It starts with a line break, so that it is valid even if the previous line is incomplete."""
        line = b"\n" + json.dumps({what: trace_id}).encode() + b"\n"
        if os.write(self._file, line) < len(line):
            raise OSError(f"{self._path.name}: only part of a line was written (the disk may be full)")

    def _compact(self) -> int:
        """Replace the file with one that has only the open sessions; return the new file descriptor."""
        self._ended = 0
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(self._path.name + ".new")
        new.write_text("".join(json.dumps({"start": trace_id}) + "\n" for trace_id in self._open))
        new.replace(self._path)
        return os.open(self._path, os.O_WRONLY | os.O_APPEND)


def _read(path: Path) -> dict[str, None]:
    """Read the trace ids of sessions that were started but not ended."""
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
