"""The access log: one JSON object a line for each request, in files of the server's folder.

It has no bodies, no queries, no addresses of clients and no ids of objects, only the template of the route.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from agent_rft.serve.http.bounded_log import BoundedLog

MAX_BYTES = 64 * 2**20
"""Size at which a file becomes `*.1`, replacing the one before it."""


@dataclass(frozen=True, slots=True)
class Access:
    """A request that ended. `key` is the id of its API key, None without a valid one; `ms` ends with the answer."""

    time: str
    request_id: str
    key: str | None
    method: str
    route: str
    status: int
    ms: float


def now() -> str:
    """Returns the time in UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class AccessLog:
    """Appends requests to a bounded file."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._lines = BoundedLog(path, max_bytes)

    def write(self, access: Access) -> None:
        self._lines.write(json.dumps(asdict(access)).encode() + b"\n")

    def close(self) -> None:
        self._lines.close()
