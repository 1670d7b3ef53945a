"""Functions that read user files up to a maximum size."""

from __future__ import annotations

from pathlib import Path

from agent_rft.errors import UserError


def read_bounded(path: Path, max_bytes: int, fix: str) -> bytes:
    """Return the content of a file of at most `max_bytes` bytes.

    If the file is larger, the error message ends with `fix`.

    Raises:
        UserError: The file cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > max_bytes:
        raise UserError(f"{path} is larger than {max_bytes:,} bytes; {fix}")
    return content


def decode_utf8(content: bytes, where: str, fix: str) -> str:
    """Decode UTF-8 text, and remove its byte order mark.

    The error message begins with `where`, the name of the source, and ends with `fix`.

    Raises:
        UserError: The content is not UTF-8; the message names the line.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{where}:{line} is not UTF-8 text: {fix}") from None
