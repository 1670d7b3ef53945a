"""A journal on disk of the sessions that are open at the user's server, so that they survive a killed process.

A line is written before a session is requested, and after the server has confirmed its end. A session that is open here
may be open there; all others are not. Lines are written without buffering, so they survive the process (not a crash of
the machine).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

COMPACT_AFTER = 10_000
"""The file is compacted after this many ended sessions (about a megabyte)."""


class SessionJournal:
    """An append-only file of one process. An invalid line (torn by a kill) was never acted upon, so it is ignored."""

    def __init__(self, path: Path) -> None:
        """Open the journal, and read which sessions an earlier process left open.

        Raises:
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
        """Record that a session is about to be requested.

        Raises:
            OSError: it was not recorded, so the session must not be requested.
        """
        self._write("start", trace_id)
        self._open[trace_id] = None

    def ended(self, trace_id: str) -> None:
        """Record that the server has confirmed a session's end.

        Raises:
            OSError: it was not recorded; after a restart the session is ended once more, which is harmless.
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
        """Write one line; it also starts with a line break, so that a torn line (a full disk) damages only itself."""
        line = b"\n" + json.dumps({what: trace_id}).encode() + b"\n"
        if os.write(self._file, line) < len(line):
            raise OSError(f"{self._path.name}: only a part of a line was written (the disk may be full)")

    def _compact(self) -> int:
        """Replace the file by one with the open sessions only; returns the new file's descriptor."""
        self._ended = 0
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(self._path.name + ".new")
        new.write_text("".join(json.dumps({"start": trace_id}) + "\n" for trace_id in self._open))
        new.replace(self._path)
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
