"""Where the bytes of files lie: a local folder, or any place that fsspec knows (`s3://bucket/files`). Names are ids
that we made, never a client's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import fsspec

from trainer.errors import UserError


class Blobs(Protocol):
    """Whole files by their name. Calls block."""

    def put(self, path: Path, name: str) -> None:
        """Takes the local file at `path`, which may be gone afterwards."""

    def path(self, name: str) -> Path:
        """Where it can be read on this machine. Raises FileNotFoundError."""

    def delete(self, name: str) -> None:
        """Gone afterwards, whether it was there or not."""


class FolderBlobs:
    """Files in a folder; `put` renames, so uploads must be written on the same disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, path: Path, name: str) -> None:
        os.replace(path, self._folder / name)

    def path(self, name: str) -> Path:
        path = self._folder / name
        if not path.is_file():
            raise FileNotFoundError(name)
        return path

    def delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


class RemoteBlobs:
    """Files at an fsspec URL, each copied once to the local folder `cache` when it is read here."""

    def __init__(self, url: str, cache: Path) -> None:
        """Raises:
        UserError: there is no such kind of place, or its library is not installed.
        """
        try:
            self._files: Any
            self._files, self._root = fsspec.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise UserError(f"--files: {error}") from None
        self._cache = FolderBlobs(cache)
        self._beside = cache / "incoming"
        self._beside.mkdir(exist_ok=True)

    def put(self, path: Path, name: str) -> None:
        self._files.makedirs(self._root, exist_ok=True)
        self._files.put_file(str(path), self._place(name))

    def path(self, name: str) -> Path:
        try:
            return self._cache.path(name)
        except FileNotFoundError:
            beside = self._beside / f"{name}.{os.getpid()}"
            self._files.get_file(self._place(name), str(beside))
            self._cache.put(beside, name)
            return self._cache.path(name)

    def delete(self, name: str) -> None:
        self._cache.delete(name)
        if self._files.exists(self._place(name)):
            self._files.rm_file(self._place(name))

    def _place(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"
