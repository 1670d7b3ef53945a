"""Shared memory that is freed when the processes that use it end, even if they are killed."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import RawIOBase
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

SHM = Path("/dev/shm")
PREFIX = "agent-rft-"
_SEGMENT = re.compile(rf"{SHM}/psm_\S+")


class SharedFile:
    """File with the bytes of an array. Other processes can open the file by `path` until `remove` is called.

    The process that creates the file holds a lock on the file until the process ends. A file without a lock is
    therefore a leftover of a dead process.
    """

    def __init__(self, folder: Path, data: NDArray[np.uint8]) -> None:
        """Write the file.

        Raises:
            OSError: `folder` is full or missing.
        """
        self.path = folder / f"{PREFIX}{secrets.token_hex(8)}"
        self._file = self.path.open("xb", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH)
            write_all(self._file, data.data)
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._file.close()


@contextmanager
def create_shared_folder(folder: Path) -> Iterator[Path]:
    """Context manager that creates a folder in `folder`, locks it like a SharedFile, and removes it on exit.

    Raises:
        OSError: `folder` is full or missing.
    """
    path = folder / f"{PREFIX}{secrets.token_hex(8)}"
    path.mkdir()
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield path
    finally:
        shutil.rmtree(path)
        os.close(lock)


def write_all(file: RawIOBase, data: memoryview) -> None:
    """Write all bytes of `data`, even more than the 2 GiB that one call can write on Linux.

    A bucket can be that large: it may contain the embedding of a large model.

    Raises:
        OSError: The disk or memory is full.
    """
    total = len(data)
    while data:
        written = file.write(data)
        if not written:
            raise OSError(f"the disk or memory is full: only {total - len(data)} of {total} bytes were written")
        data = data[written:]


def remove_leftovers(folder: Path = SHM) -> None:
    """Remove the files and folders that killed processes have left in `folder`."""
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):  # locked, already gone, or another user's
            lock = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            finally:
                os.close(lock)


def unlink_shared_memory() -> None:
    """Unlink the files in /dev/shm that `multiprocessing` created for this process and its children.

    Existing mappings stay valid until the last process ends, so call this once all processes have mapped the memory.
    The memory is then freed even if Ray kills all processes, including multiprocessing's resource tracker.
    """
    for process in (me := psutil.Process(), *me.children(recursive=True)):
        with suppress(OSError):  # it has already ended
            for name in set(_SEGMENT.findall(Path(f"/proc/{process.pid}/maps").read_text())):
                Path(name).unlink(missing_ok=True)
