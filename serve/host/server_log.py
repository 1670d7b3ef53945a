"""The server's log: failures with request ids and tracebacks, without secrets, in files of bounded size.

Each API replica writes `logs/server-N.log` in the server's folder. The replicas are Ray processes, whose output goes to
Ray's session folder. `agent-rft serve` therefore copies new records of these files to its standard error.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from agent_rft.cluster.records.redaction import REDACTED, to_plain_json
from agent_rft.serve.http.access_log import BoundedLog

LOG_FOLDER, LOG_PATTERN = "logs", "server-*.log"
MAX_BYTES = 16 * 2**20
MAX_RECORD_CHARS = 16_000
"""Maximum characters of a record. The middle of longer records is removed."""
POLL_S = 0.5
CHUNK_BYTES = 1 << 20

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|DATABASE", re.IGNORECASE)
MIN_SECRET_CHARS = 8
"""Minimum length of a secret.

A shorter value is not treated as a secret, even if the variable has a secret-like name, such as MAX_TOKENS.
"""
_SECRETS = re.compile(
    r"(?P<bearer>\b(?:bearer|basic)\s+)[^\s'\",)\\]+"
    r"|(?P<key>\b(?:sk|whsec)[-_])[\w+/=-]{6,}"
    # Values that pydantic and FastAPI quote from a request or a stored job, such as headers.
    r"|(?P<pydantic>input_value=).*?(?=, input_type=|$)"
    r"|(?P<fastapi>'input': ).*$",
    re.IGNORECASE | re.MULTILINE,
)


class ServerLog(logging.Handler):
    """Logging handler that writes the warnings and errors of a process to a file, without secrets.

    It removes values of secret environment variables, keys, credentials in URLs, and input quoted by validation errors.
    SQL parameters never reach this handler, since the database engine hides them.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__(logging.WARNING)
        self._lines = BoundedLog(path, max_bytes)
        values = {value.strip() for name, value in environment.items() if _SECRET_NAME.search(name)}
        # Longest first, because a value may contain a shorter one.
        self._values = sorted((value for value in values if len(value) >= MIN_SECRET_CHARS), key=len, reverse=True)

    @classmethod
    def for_replica(cls, folder: Path, replica: int) -> ServerLog:
        """Return the log of API replica number `replica`; `folder` is the server's folder."""
        return cls(folder / LOG_FOLDER / f"server-{replica}.log")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.write(self.format(record).encode(errors="replace") + b"\n")
        except Exception:  # noqa: BLE001 - a value that cannot be formatted must not fail the request
            self.handleError(record)

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        text = f"{time} {record.levelname} {record.name}: {logging.Formatter().format(record)}"
        for value in self._values:
            text = text.replace(value, REDACTED)
        text = _SECRETS.sub(lambda found: f"{found[found.lastgroup or 0]}{REDACTED}", text)
        text = str(to_plain_json(text))
        if len(text) > MAX_RECORD_CHARS:
            half = MAX_RECORD_CHARS // 2
            text = f"{text[:half]}\n... {len(text) - 2 * half:,} characters omitted ...\n{text[-half:]}"
        return text

    def close(self) -> None:
        self._lines.close()
        super().close()


class LogFollower:
    """Context manager that copies new records of a server's logs to `write`, in a separate thread.

    If `write` raises OSError or ValueError, for example because the terminal was closed, the copying stops without an
    error.
    """

    def __init__(self, folder: Path, write: Callable[[str], object], poll_s: float = POLL_S) -> None:
        self._folder = folder / LOG_FOLDER
        self._write = write
        self._poll_s = poll_s
        self._files: dict[Path, BinaryIO] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server-log", daemon=True)

    def __enter__(self) -> LogFollower:
        for path in self._folder.glob(LOG_PATTERN):
            with suppress(OSError):
                self._files[path] = file = path.open("rb")
                file.seek(0, os.SEEK_END)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()
        for file in self._files.values():
            file.close()

    def _run(self) -> None:
        with suppress(OSError, ValueError):
            while not self._stopped.wait(self._poll_s):
                self._copy()
            self._copy()

    def _copy(self) -> None:
        for path in sorted(self._folder.glob(LOG_PATTERN)):
            if path in self._files and _was_renamed(path, self._files[path]):
                self._copy_rest(self._files[path])
                self._files.pop(path).close()
            if path not in self._files:
                self._files[path] = path.open("rb")
            self._copy_rest(self._files[path])

    def _copy_rest(self, file: BinaryIO) -> None:
        while chunk := file.read(CHUNK_BYTES):
            self._write(chunk.decode(errors="replace"))


def _was_renamed(path: Path, file: BinaryIO) -> bool:
    return path.stat().st_ino != os.fstat(file.fileno()).st_ino
