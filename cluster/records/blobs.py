"""Storage for files in a local folder, or at any location that fsspec supports (`s3://bucket/files`).

The server generates an id as the name of each stored file. File names from clients are never used.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Protocol

import fsspec

from agent_rft.errors import UserError

MARKER = ".agent-rft"
"""Name of an empty file in remote storage. Reading this file checks that the storage answers."""


def open_location(url: str, setting: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in this file system. Credentials come from the environment.

    `setting` is the name of the URL's setting, for error messages.

    Raises:
        UserError: fsspec does not support the URL's protocol, or its library is not installed.
    """
    try:
        files, root = fsspec.url_to_fs(url)
    except ValueError as error:
        raise UserError(f"{setting}: {error}; use a supported URL, such as s3://, gs://, az:// or file://") from None
    except ImportError as error:
        raise UserError(f"{setting}: {error}") from None  # the error names the package to install
    return files, str(root)


class Blobs(Protocol):
    """Storage for named files. All methods block."""

    def put(self, path: Path, name: str) -> None:
        """Store the local file `path` under `name`. The file may be moved instead of copied."""

    def path(self, name: str) -> Path:
        """Return a local path from which the stored file can be read.

        Raises:
            FileNotFoundError: The storage has no file with this name.
        """

    def delete(self, name: str) -> None:
        """Delete the stored file; do nothing if it does not exist."""

    def check(self) -> None:
        """Check that files can be stored.

        Raises:
            Exception: The storage cannot be used. The type depends on the file system.
        """


class FolderBlobs:
    """Storage in a local folder. `put` renames a file, so the file must be on the same file system as the folder."""

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

    def check(self) -> None:
        with tempfile.TemporaryFile(dir=self._folder) as file:
            file.write(b"1")


class RemoteBlobs:
    """Storage at an fsspec URL. A file is downloaded to the local folder `cache` when it is first read."""

    def __init__(self, url: str, cache: Path) -> None:
        """Open the location at `url`.

        Raises:
            UserError: fsspec does not support the URL's protocol, or its library is not installed.
        """
        self._files, self._root = open_location(url, "--files")
        self._cache = FolderBlobs(cache)
        self._incoming = cache / "incoming"
        self._incoming.mkdir(exist_ok=True)

    def put(self, path: Path, name: str) -> None:
        self._files.makedirs(self._root, exist_ok=True)
        self._files.put_file(str(path), self._remote_path(name))

    def path(self, name: str) -> Path:
        try:
            return self._cache.path(name)
        except FileNotFoundError:
            partial = self._incoming / f"{name}.{os.getpid()}"
            self._files.get_file(self._remote_path(name), str(partial))
            self._cache.put(partial, name)
            return self._cache.path(name)

    def delete(self, name: str) -> None:
        self._cache.delete(name)
        if self._files.exists(self._remote_path(name)):
            self._files.rm_file(self._remote_path(name))

    def check(self) -> None:
        marker = self._remote_path(MARKER)
        self._files.invalidate_cache()
        try:
            self._files.info(marker)
        except FileNotFoundError:  # the first check of a new store
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(marker, b"")

    def _remote_path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


def open_blobs(url: str | None, folder: Path) -> Blobs:
    """Open the storage at an fsspec URL with `folder` as its local cache. If `url` is None, `folder` is the storage."""
    return FolderBlobs(folder) if url is None else RemoteBlobs(url, folder)
