"""Where a server that has its machine to itself takes requests: a port that is held before anything starts, and the
app's own process behind it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from fastapi import FastAPI

from trainer.errors import UserError

BACKLOG = 2_048
KEEP_ALIVE_S = 75
"""Longer than clients and proxies keep a connection, so that it is never we who close it under a request."""
STOP_S = 20.0
"""How long answers that are under way may take once the application is to stop."""


@contextmanager
def held(host: str, port: int) -> Iterator[int]:
    """The port, which nobody else can take meanwhile; the API's process listens at it by SO_REUSEPORT.

    Raises:
        UserError: nobody can listen there.
    """
    try:
        with bound(host, port, socket.SO_REUSEADDR) as probe:
            probe.listen()
            port = probe.getsockname()[1]
        holder = bound(host, port)
    except OSError as error:
        raise UserError(f"cannot listen at {host}:{port}: {error.strerror}; give another --port") from None
    with holder:
        yield port


@asynccontextmanager
async def listening(app: FastAPI, host: str, port: int) -> AsyncIterator[None]:
    """Serves `app` at an address, to the end of the answers that are under way. Who holds the port by SO_REUSEPORT and
    does not listen, may keep it.

    Raises:
        OSError: nobody can listen there.
    """
    with bound(host, port) as listener:
        # Its connections have it from here: those that outlive a killed server keep nobody from this port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.listen(BACKLOG)
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(STOP_S) - 2,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield
        finally:
            server.should_exit = True
            await serving


def bound(host: str, port: int, option: int = socket.SO_REUSEPORT) -> socket.socket:
    """A socket with this option, at an address; it does not listen yet.

    Raises:
        OSError: nobody can listen there.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, option, 1)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made
