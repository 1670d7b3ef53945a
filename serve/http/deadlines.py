"""How long clients may take: for each of them the server keeps a connection, memory or a place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds, unless the name says otherwise."""

    headers_s: float = 20.0
    """From the connection, or from a request's first byte, to the end of its headers."""
    body_s: float = 120.0
    """For a whole body other than an upload."""
    upload_idle_s: float = 60.0
    """Without any data of an upload."""
    upload_bytes_per_s: float = 16_384.0
    """An upload must be this fast on average, after `upload_idle_s`."""
    unread_s: float = 60.0
    """Without progress of an answer that the client does not read."""
    rest_s: float = 10.0
    """For the rest of a body that was refused."""


DEADLINES = Deadlines()
