"""The access log: one line of JSON per request, in files in the server's folder.

Lines contain the route template, but no bodies, queries, client addresses or object ids. Each file is a `BoundedLog`.
If a line cannot be written, it is lost, but the request succeeds.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

MAX_BYTES = 64 * 2**20
"""Size in bytes at which a file is renamed to `*.1`, which replaces the previous `*.1`."""


@dataclass(frozen=True, slots=True)
class AccessLogEntry:
    """A completed request. The server makes `request_id`; `client_request_id` is the client's `x-request-id`, or None.

    `key` is the id of the request's API key, or None if the key was missing or invalid. `ms` is the total duration.
    """

    time: str
    request_id: str
    client_request_id: str | None
    key: str | None
    method: str
    route: str
    status: int
    ms: float


def format_utc_now() -> str:
    """Return the current UTC time in ISO format, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class AccessLog:
    """Log of requests in a file of bounded size."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._lines = BoundedLog(path, max_bytes)

    def write(self, access: AccessLogEntry) -> None:
        self._lines.write(json.dumps(asdict(access)).encode() + b"\n")

    def close(self) -> None:
        self._lines.close()


# -- bounded log -------------------------------------------------------------------------------------------------------


class BoundedLog:
    """Log file of bounded size that only its owner can read. If the disk is full, lines are lost without an error.

    When the file reaches `max_bytes`, it is renamed to `*.1` and replaces the previous `*.1`. Methods are thread-safe.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._file = -1
        self._size = 0

    def write(self, line: bytes) -> None:
        with self._lock:
            try:
                if self._size + len(line) > self._max_bytes:
                    self._close()
                    os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
                if self._file < 0:
                    self._path.parent.mkdir(mode=0o700, exist_ok=True)
                    self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                    self._size = os.fstat(self._file).st_size
                self._size += os.write(self._file, line)
            except OSError:
                self._close()

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._size = -1, 0
