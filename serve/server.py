"""A server's life: its port, its stores, its app, and an end in good order at the first signal."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import ray
import uvicorn
from fastapi import FastAPI

from cluster.ray_session import job_cluster
from cluster.signals import Signals
from serve.app import Lifespan, create_app
from serve.ray_engine import EngineResources
from serve.services import Services
from serve.state import Places, ServerState
from trainer.errors import UserError
from trainer.operator import Operator

BACKLOG = 2048
STOP_S = 20
"""How long answers that are under way may take after the first signal."""
KEEP_ALIVE_S = 75
"""Longer than clients and proxies keep a connection, so that it is never we who close it under a request."""

Background = Callable[[], Coroutine[Any, Any, None]]


class _Server(uvicorn.Server):
    """Signals are `cluster.signals`'."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def app_of(state: ServerState, services: Services, operator: Operator) -> FastAPI:
    """The whole API on these stores and services."""
    tasks = [state.keep_clean, services.run]
    return create_app(services.routers, state.keys, limits=operator.limits, lifespan=beside(tasks))


def beside(tasks: Sequence[Background]) -> Lifespan:
    """A lifespan in which `tasks` run until the app ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        running = [asyncio.create_task(task()) for task in tasks]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    return lifespan


def run_server(
    places: Places,
    operator: Operator,
    host: str,
    port: int,
    address: str | None,
    tell: Callable[[str], None],
    config: Path | None = None,
) -> None:
    """Serve until a signal. `tell` gets the lines for whoever starts the server; `config` is the operator's file, from
    which drivers read it again.

    Raises:
        RftError: why it cannot start.
    """
    listener = listen(host, port)
    try:
        state = ServerState(places, operator)
        try:
            with job_cluster(address) as job_server:
                resources = EngineResources(gpus=1 if ray.cluster_resources().get("GPU", 0) else 0)
                services = Services(state, places, operator, config, address, job_server, resources)
                token = state.first_key()
                if token is not None:
                    tell(f"API key, shown this once: {token}")
                asyncio.run(_serve(app_of(state, services, operator), listener, tell))
        finally:
            state.close()
    finally:
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    """
    Raises:
        UserError: nobody can listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen at {host}:{port}: {error.strerror}; give another --port") from None
    return listener


async def _serve(app: FastAPI, listener: socket.socket, tell: Callable[[str], None]) -> None:
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
    )
    server = _Server(config)

    def stop() -> None:
        server.should_exit = True

    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    tell(f"serving at http://{shown}:{port}/v1 (docs at /docs)")
    with Signals() as signals, signals.graceful(stop):
        await server.serve(sockets=[listener])
