"""Messages from processes that run foreign code: a length (four bytes) and JSON, of which nothing is taken on trust.

A run of untrusted code is asked for, and answered, by a larger message: an object and the parts that it describes.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

MAX_FRAME_BYTES = 1 << 16
"""More than a worker ever sends: an error's details of 4,000 characters, each with up to twelve bytes."""
MAX_TEXT_CHARS = 4_000
TURN_BYTES = 16
"""The random name of a grade's turn, with which its requests to run code begin."""
CHUNK_BYTES = 60_000
HEAD_BYTES = TURN_BYTES + 4
"""The head of a chunk: its turn and the number of the message in that. A byte follows: whether it is the last chunk."""


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


def checked_length(header: bytes, most: int = MAX_FRAME_BYTES) -> int:
    """The length in a frame's header.

    Raises:
        ValueError: it is too large.
    """
    length = int.from_bytes(header, "big")
    if length > most:
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
    return decode(receive_bytes(channel, deadline))


def receive_bytes(channel: socket.socket, deadline: float, most: int = MAX_FRAME_BYTES) -> bytes:
    """The bytes of one message; raises as `receive`."""
    return _exactly(channel, checked_length(_exactly(channel, 4, deadline), most), deadline)


def send(channel: socket.socket, body: bytes) -> None:
    channel.sendall(len(body).to_bytes(4, "big") + body)


def pack(header: dict[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    """One message of a small object and large parts."""
    head = json.dumps({**header, "sizes": [len(part) for part in parts]}).encode()
    return b"".join([len(head).to_bytes(4, "big"), head, *parts])


def unpack(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The object and the parts of a message.

    Raises:
        ValueError: the message is invalid.
    """
    at = 4 + checked_length(message[:4])
    header = decode(message[4:at])
    sizes = header.pop("sizes", None)
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError("a message without the sizes of its parts")
    if at + sum(sizes) != len(message):
        raise ValueError("a message of another size than it says")
    parts = []
    for size in sizes:
        parts.append(message[at : at + size])
        at += size
    return header, parts


def chunks(head: bytes, message: bytes) -> Iterator[bytes]:
    """The packets for a socket that keeps packets whole."""
    for at in range(0, len(message), CHUNK_BYTES):
        yield head + bytes([at + CHUNK_BYTES >= len(message)]) + message[at : at + CHUNK_BYTES]


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
