"""The checks behind `/health/ready`: which dependencies of the server are missing, such as its database.

`/health` is the check of a live process, which a restart repairs, and `/health/ready` that of its dependencies, which
none does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from serve.http.errors import ApiError

CHECK_S = 3.0
"""How long a check may take until its dependency is missing."""
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
    """Add `/health` and `/health/ready`, which need no API key."""
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
