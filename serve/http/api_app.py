"""The API as one FastAPI app: routers, middleware, health checks and the OpenAPI page."""

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
from agent_rft.serve.http.audit_actions import Auditor
from agent_rft.serve.http.auth import KEY_CACHE_S, Authenticator, KeyFinder, KeyRateLimit
from agent_rft.serve.http.client_limits import DEADLINES, Deadlines
from agent_rft.serve.http.error_responses import PREFIX, base_url, install_handlers
from agent_rft.serve.http.middleware import ApiMiddleware
from agent_rft.serve.http.schemas.base import FAILURES
from agent_rft.spec.operator.operator_config import ServerLimits
from agent_rft.wire.api_errors import ApiError

CHECK_S = 3.0
"""Timeout of a health check in seconds. If the check takes longer, the checked dependency counts as unavailable."""
Checks = Mapping[str, Callable[[], None]]
"""Health checks by dependency name. A check may block, and raises an exception if the dependency is unavailable."""
NO_CHECKS: Checks = MappingProxyType({})


class DependencyChecks:
    """Runs health checks in threads. Concurrent requests share one run of each check."""

    def __init__(self, checks: Checks, timeout_s: float = CHECK_S) -> None:
        self._checks = checks
        self._timeout_s = timeout_s
        self._running: dict[str, asyncio.Task[str]] = {}

    async def find_unavailable(self) -> dict[str, str]:
        """Return the name of each unavailable dependency, with the reason."""
        for name, check in self._checks.items():
            if name not in self._running or self._running[name].done():
                self._running[name] = asyncio.create_task(_run_check(check))
        tasks = dict(self._running)
        if tasks:
            await asyncio.wait(tasks.values(), timeout=self._timeout_s)
        slow = f"no answer within {self._timeout_s:g} s"
        errors = {name: task.result() if task.done() else slow for name, task in tasks.items()}
        return {name: error for name, error in errors.items() if error}


async def _run_check(check: Callable[[], None]) -> str:
    try:
        await asyncio.to_thread(check)
    except Exception as error:  # noqa: BLE001 - any exception means that the dependency is unavailable
        return type(error).__name__
    return ""


def add_health(app: FastAPI, checks: Checks) -> None:
    """Add `/health`, which checks this process, and `/health/ready`, which checks the dependencies in `checks`.

    Neither route requires an API key. There are two routes because a restart can repair a process that hangs, but not
    an unavailable dependency.
    """
    dependencies = DependencyChecks(checks)

    @app.get("/health", include_in_schema=False)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/health/ready", include_in_schema=False)
    async def ready(request: Request) -> JSONResponse:
        missing = await dependencies.find_unavailable()
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
    rate: KeyRateLimit | None = None,
    lifespan: Lifespan = _no_lifespan,
    recorder: Recorder | None = None,
    behind_proxy: bool = False,
    access_log: AccessLog | None = None,
    audit: Auditor | None = None,
    sessions: KeyFinder | None = None,
    key_cache_s: float = KEY_CACHE_S,
    checks: Checks = NO_CHECKS,
    public_url: str | None = None,
) -> FastAPI:
    """Return an app that serves `routers` below `/v1`.

    Args:
        routers: Routers of the API.
        keys: Finds API keys by token.
        limits: Limits on bodies, connections and request rates.
        deadlines: Deadlines for clients.
        rate: Rate limits of API keys; None creates them from `limits`.
        lifespan: Context manager that is entered before the first request and exited after the last one.
        recorder: Records a metric for each request.
        behind_proxy: Whether Ray Serve's proxy assigns request ids and cancels the requests of disconnected clients.
        access_log: Log of all requests.
        audit: Log of all requests that change something.
        sessions: Finds API keys by session cookie.
        key_cache_s: Seconds for which a valid API key is cached.
        checks: Health checks of the dependencies, for `/health/ready`.
        public_url: Origin of the console's pages. If None, every origin with the host of the request is accepted.
    """
    app = FastAPIOffline(
        title="agent-rft",
        version=version("agent-rft"),
        description="Reinforcement fine-tuning of agents on your own cluster, through OpenAI's API.",
        lifespan=lifespan,
        default_response_class=JSONResponse,  # pydantic, the default, formats floats differently
        redirect_slashes=False,
        redoc_url=None,  # it duplicates /docs, and its script loads a logo from another host
        static_url="/docs/files",
    )
    rate = rate or KeyRateLimit(limits.requests_per_minute)
    authenticator = Authenticator(keys, rate, sessions=sessions, cache_s=key_cache_s)
    app.add_middleware(
        ApiMiddleware,
        authenticator=authenticator,
        max_body_bytes=limits.max_body_bytes,
        max_in_progress=limits.max_connections,
        deadlines=deadlines,
        recorder=recorder,
        behind_proxy=behind_proxy,
        access_log=access_log,
        audit=audit,
        public_url=public_url,
    )
    install_handlers(app)
    for router in routers:
        app.include_router(router, prefix=PREFIX, responses=FAILURES)

    @app.get(PREFIX, include_in_schema=False)
    async def root(request: Request) -> dict[str, str]:
        return {"message": "This is the base URL for clients.", "base_url": base_url(request), "docs": "/docs"}

    add_health(app, checks)
    return app
