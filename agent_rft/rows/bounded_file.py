"""Files that a user names, read no further than a bound."""

from __future__ import annotations

from pathlib import Path

from agent_rft.errors import UserError


def read_bounded(path: Path, most: int, remedy: str) -> bytes:
    """The content of a file; `remedy` is for one that has more than `most` bytes.

    Raises:
        UserError: It cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > most:
        raise UserError(f"{path} is larger than {most:,} bytes; {remedy}")
    return content


def as_text(content: bytes, where: str, remedy: str) -> str:
    """A UTF-8 text, without its byte order mark.

    Raises:
        UserError: It is not UTF-8; the line is named.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{where}:{line} is not UTF-8 text: {remedy}") from None
