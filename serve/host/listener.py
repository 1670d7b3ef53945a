"""The listening socket of a server on a single node.

`agent-rft serve` reserves the port before it starts anything else. The API's process then listens on this port.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from agent_rft.errors import UserError
from agent_rft.serve.host.connections import GuardedProtocol
from agent_rft.serve.http.client_limits import DEADLINES, Deadlines, OwnerQuota
from agent_rft.spec.operator.operator_config import ServerLimits

BACKLOG = 2_048
KEEP_ALIVE_S = 75
"""Seconds until an idle connection is closed. Clients and proxies have shorter timeouts, so they close it first."""
STOP_S = 20.0
"""Maximum time in seconds for stopping the application. Requests in progress get 2 seconds less."""


@contextmanager
def reserve_port(host: str, port: int) -> Iterator[int]:
    """Context manager that reserves a port and yields its number.

    The socket option SO_REUSEPORT lets the API's process listen on the reserved port.

    Raises:
        UserError: The server cannot listen on this host and port.
    """
    try:
        with bind_socket(host, port, socket.SO_REUSEADDR) as probe:
            probe.listen()
            port = probe.getsockname()[1]
        holder = bind_socket(host, port)
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
    with holder:
        yield port


@asynccontextmanager
async def serve_app(
    app: FastAPI,
    host: str,
    port: int,
    max_connections: int = ServerLimits().max_connections,
    deadlines: Deadlines = DEADLINES,
    stop_s: float = STOP_S,
) -> AsyncIterator[None]:
    """Context manager that serves `app` on a host and port.

    On exit, requests in progress get `stop_s` - 2 seconds to finish.

    Raises:
        OSError: The server cannot listen on this host and port.
    """
    with bind_socket(host, port) as listener:
        # Connections inherit this option, so connections that outlive a killed server do not block the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.listen(BACKLOG)
        num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        connections = OwnerQuota(
            min(max_connections, num_files * 3 // 4)
        )  # other file descriptors are for files and the database
        protocol: Any = partial(GuardedProtocol, connections, deadlines)
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(stop_s) - 2,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield
        finally:
            server.should_exit = True
            await serving


def bind_socket(host: str, port: int, option: int = socket.SO_REUSEPORT) -> socket.socket:
    """Return a TCP socket with the socket option `option`, bound to a host and port but not listening.

    Raises:
        OSError: The socket cannot be bound to this host and port.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, option, 1)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made
