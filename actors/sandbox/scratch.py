"""Cleanup of a worker's scratch folder after each grade.

Untrusted code may replace the folder or create links. The cleanup therefore checks the folder's identity and does not
follow links.
"""

from __future__ import annotations

import os
import stat


def empty_folder(folder: str, expected_identity: tuple[int, int]) -> None:
    """Empty the scratch folder, to any depth, without following links and without leaving its file system.

    Raises:
        OSError: The folder cannot be emptied, or its device and inode differ from `expected_identity`.
    """
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if read_identity(top) != expected_identity:
            raise OSError(f"{folder} has been replaced by another folder")
        while names := remove_files(top):
            for name in names:
                flatten_folder(top, name)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def flatten_folder(top: int, name: str) -> None:
    """Remove the files of the folder `name` in `top`, and move its subfolders to `top`, so that paths stay short."""
    os.chmod(name, stat.S_IRWXU, dir_fd=top)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        if os.fstat(inner).st_dev != os.fstat(top).st_dev:
            raise OSError(f"{name} is a mount")
        for below in remove_files(inner):
            os.chmod(below, stat.S_IRWXU, dir_fd=inner)
            os.rename(below, os.urandom(12).hex(), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)


def remove_files(folder: int) -> list[str]:
    """Remove everything except subfolders from an open folder; return the names of the subfolders."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return folders


def read_identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def scratch_folder() -> tuple[str, tuple[int, int]]:
    """Return the path and (device, inode) of the current folder. Call this before any untrusted code runs."""
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return os.getcwd(), read_identity(folder)
    finally:
        os.close(folder)
