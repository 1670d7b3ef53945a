"""The API as one FastAPI app: routers, the frame around them, health checks and the OpenAPI page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from types import MappingProxyType

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline

from agent_rft.actors.runtime.telemetry.recorder import Recorder
from agent_rft.serve.http.access_log import AccessLog
from agent_rft.serve.http.audit import Auditor
from agent_rft.serve.http.auth import KEY_CACHE_S, Authenticator, KeyFinder, RateLimit
from agent_rft.serve.http.client_limits import DEADLINES, Deadlines
from agent_rft.serve.http.errors import PREFIX, base_url, install_handlers
from agent_rft.serve.http.frame import Frame
from agent_rft.serve.http.schemas.base import FAILURES
from agent_rft.spec.operator.config import ServerLimits
from agent_rft.wire.errors import ApiError

CHECK_S = 3.0
"""Seconds after which a check that has not ended reports its dependency as missing."""
Checks = Mapping[str, Callable[[], None]]
"""Functions that block and that raise if the dependency of this name cannot be used."""
NO_CHECKS: Checks = MappingProxyType({})


class Dependencies:
    """Runs `checks` in threads, each of them once at a time however many requests wait for it."""

    def __init__(self, checks: Checks, timeout_s: float = CHECK_S) -> None:
        self._checks = checks
        self._timeout_s = timeout_s
        self._running: dict[str, asyncio.Task[str]] = {}

    async def missing(self) -> dict[str, str]:
        """Return the missing dependencies, each with the type of the error for the server's log."""
        for name, check in self._checks.items():
            if name not in self._running or self._running[name].done():
                self._running[name] = asyncio.create_task(_error_of(check))
        tasks = dict(self._running)
        if tasks:
            await asyncio.wait(tasks.values(), timeout=self._timeout_s)
        slow = f"no answer within {self._timeout_s:g} s"
        errors = {name: task.result() if task.done() else slow for name, task in tasks.items()}
        return {name: error for name, error in errors.items() if error}


async def _error_of(check: Callable[[], None]) -> str:
    try:
        await asyncio.to_thread(check)
    except Exception as error:  # noqa: BLE001 - whatever a database or a file system raises, it cannot be used
        return type(error).__name__
    return ""


def add_health(app: FastAPI, checks: Checks) -> None:
    """Add `/health` for a live process and `/health/ready` for its dependencies. Neither needs an API key.

    A restart repairs a process that does not answer, but no missing dependency.
    """
    dependencies = Dependencies(checks)

    @app.get("/health", include_in_schema=False)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/health/ready", include_in_schema=False)
    async def ready(request: Request) -> JSONResponse:
        missing = await dependencies.missing()
        if not missing:
            return JSONResponse({"status": "ready"})
        cause = ", ".join(f"{name} ({error})" for name, error in missing.items())
        request.state.failure = ApiError(503, "The server is not ready.", cause=f"missing: {cause}")
        return JSONResponse({"status": "not_ready", "missing": list(missing)}, 503, {"Retry-After": "5"})


Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]
DEFAULT_LIMITS = ServerLimits()


@asynccontextmanager
async def _no_lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield


def create_app(
    routers: Sequence[APIRouter],
    keys: KeyFinder,
    *,
    limits: ServerLimits = DEFAULT_LIMITS,
    deadlines: Deadlines = DEADLINES,
    rate: RateLimit | None = None,
    lifespan: Lifespan = _no_lifespan,
    recorder: Recorder | None = None,
    behind_proxy: bool = False,
    access_log: AccessLog | None = None,
    audit: Auditor | None = None,
    sessions: KeyFinder | None = None,
    key_cache_s: float = KEY_CACHE_S,
    checks: Checks = NO_CHECKS,
) -> FastAPI:
    """Returns an app that serves `routers` below `/v1`.

    `lifespan` is entered before the first request and exited after the last one; `recorder` records each request.
    `behind_proxy` is for Ray Serve's proxy, which assigns request ids, writes them to the responses and cancels the
    requests of clients that disconnected. `access_log` gets each request, `audit` each that changes something.
    `sessions` finds the keys of cookies; `key_cache_s` is how long what was found is used again.
    `checks` are those of `/health/ready`.
    """
    app = FastAPIOffline(
        title="agent-rft",
        version=version("agent-rft"),
        description="Agent reinforcement fine-tuning on your own cluster, through OpenAI's API.",
        lifespan=lifespan,
        default_response_class=JSONResponse,  # by default pydantic writes the JSON, with other floats
        redirect_slashes=False,
        redoc_url=None,  # a second page of the same, whose script loads a logo from another host
        static_url="/docs/files",
    )
    rate = rate or RateLimit(limits.requests_per_minute)
    authenticator = Authenticator(keys, rate, sessions=sessions, cache_s=key_cache_s)
    app.add_middleware(
        Frame,
        authenticator=authenticator,
        max_body_bytes=limits.max_body_bytes,
        max_in_progress=limits.max_connections,
        deadlines=deadlines,
        recorder=recorder,
        behind_proxy=behind_proxy,
        access_log=access_log,
        audit=audit,
    )
    install_handlers(app)
    for router in routers:
        app.include_router(router, prefix=PREFIX, responses=FAILURES)

    @app.get(PREFIX, include_in_schema=False)
    async def root(request: Request) -> dict[str, str]:
        return {"message": "This is the base URL for clients.", "base_url": base_url(request), "docs": "/docs"}

    add_health(app, checks)
    return app
