"""The listening socket of a server on one machine.

`agent-rft serve` reserves the port before anything starts; the process of the API listens at it.
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
from agent_rft.serve.http.client_limits import DEADLINES, Deadlines, Shares
from agent_rft.spec.operator.config import ServerLimits

BACKLOG = 2_048
KEEP_ALIVE_S = 75
"""Longer than clients and proxies keep a connection, so that the server never closes one as a request arrives."""
STOP_S = 20.0
"""How long requests in progress may take once the application is stopping."""


@contextmanager
def reserved_port(host: str, port: int) -> Iterator[int]:
    """Reserves a port and gives its number; the API's process can still listen at it, by SO_REUSEPORT.

    Raises:
        UserError: the address cannot be listened at.
    """
    try:
        with bound_socket(host, port, socket.SO_REUSEADDR) as probe:
            probe.listen()
            port = probe.getsockname()[1]
        holder = bound_socket(host, port)
    except OSError as error:
        raise UserError(f"cannot listen at {host}:{port}: {error.strerror}; give another --port") from None
    with holder:
        yield port


@asynccontextmanager
async def listening(
    app: FastAPI,
    host: str,
    port: int,
    max_connections: int = ServerLimits().max_connections,
    deadlines: Deadlines = DEADLINES,
    stop_s: float = STOP_S,
) -> AsyncIterator[None]:
    """Serves `app` at an address; at the end it finishes the requests in progress, for less than `stop_s`.

    Another process may reserve the port by SO_REUSEPORT as long as it does not listen.

    Raises:
        OSError: the address cannot be listened at.
    """
    with bound_socket(host, port) as listener:
        # Connections inherit this option: those that outlive a killed server then do not block the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.listen(BACKLOG)
        num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        connections = Shares(min(max_connections, num_files * 3 // 4))  # the rest is for files and the database
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


def bound_socket(host: str, port: int, option: int = socket.SO_REUSEPORT) -> socket.socket:
    """Returns a socket with this option, bound to an address but not listening yet.

    Raises:
        OSError: the address cannot be bound.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, option, 1)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made
