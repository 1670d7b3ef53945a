"""Messages from processes that run foreign code: a length (four bytes) and JSON, of which nothing is taken on trust."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

MAX_FRAME_BYTES = 1 << 16
"""More than a worker ever sends: an error's details of 4,000 characters, each with up to twelve bytes."""
MAX_TEXT_CHARS = 4_000


def decode(frame: bytes) -> dict[str, Any]:
    """The object in a frame.

    Raises:
        ValueError: the frame is not a JSON object, or nested too deeply.
    """
    try:
        message = json.loads(frame)
    except RecursionError:
        raise ValueError("a message that is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("a message that is not an object")
    return message


def checked_length(header: bytes) -> int:
    """The length in a frame's header.

    Raises:
        ValueError: it is too large.
    """
    length = int.from_bytes(header, "big")
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {length} bytes")
    return length


def clean_text(value: object) -> str | None:
    """A text that can be stored everywhere (no lone surrogates, no null characters), and not a long one; else None."""
    if not isinstance(value, str):
        return None
    return value[-MAX_TEXT_CHARS:].encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def receive(channel: socket.socket, deadline: float) -> dict[str, Any]:
    """One message, completely received before `deadline` (`time.monotonic()`).

    Raises:
        TimeoutError: it was not.
        EOFError: the channel was closed before.
        ValueError: the message is invalid.
    """
    return decode(_exactly(channel, checked_length(_exactly(channel, 4, deadline)), deadline))


def send(channel: socket.socket, body: bytes) -> None:
    channel.sendall(len(body).to_bytes(4, "big") + body)


def _exactly(channel: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        channel.settimeout(left_s)
        chunk = channel.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data
