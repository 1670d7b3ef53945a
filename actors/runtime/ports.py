"""TCP ports: a free one, and one of the loopback address that is already listened at."""

from __future__ import annotations

import socket


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def loopback_socket(host: str, port: int) -> socket.socket | None:
    """A socket that listens at `host`, for a server that would listen on all addresses; None for other machines' too.

    On a cluster, the address by which Ray knows a node may not be one of its own.
    """
    return socket.create_server((host, port)) if host.startswith("127.") else None
