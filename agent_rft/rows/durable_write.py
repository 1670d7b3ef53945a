"""File writes that survive a kill and a power loss.

The content is written to a temporary file and flushed to disk before the temporary file is renamed.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file atomically, and return once the new content is on disk.

    Readers see either the complete old content or the complete new content.

    Raises:
        OSError: The disk is full or read-only; the old content is untouched.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)  # frees the space for a smaller file
        raise
    temporary.rename(path)
    sync_to_disk(path.parent)


def sync_to_disk(path: Path) -> None:
    """Wait until the content of a file, or the list of names in a folder, is on disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
