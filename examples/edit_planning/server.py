"""Sessions, tools and graders behind HTTP: `uvicorn examples.edit_planning.server:app --port 8040`."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from examples.common.sessions import Full, Gone, trace_of
from examples.edit_planning import plans
from examples.edit_planning.commands import TOOLS, Refused
from examples.edit_planning.history import write_missing
from examples.edit_planning.machines import Machines
from examples.edit_planning.repositories import REPOSITORIES, Repositories, Unknown

SWEEP_S: Final = 60.0
RETRY_S: Final = 1


def make_app(machines: Machines) -> FastAPI:
    """Return an app that serves these machines, and closes them when it ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(write_missing, machines.repositories.folder)
        sweeper = asyncio.create_task(_sweep(machines))
        try:
            yield
        finally:
            sweeper.cancel()
            await asyncio.to_thread(machines.close_all)

    app = FastAPI(lifespan=lifespan)

    @app.exception_handler(Unknown)
    def unknown(_: Request, error: Unknown) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)

    @app.exception_handler(CalledProcessError)
    def failed(_: Request, error: CalledProcessError) -> JSONResponse:
        return JSONResponse({"detail": f"git cannot read the row's repository: {error.stderr}"}, 422)

    @app.post("/session/start")
    def start(body: dict[str, Any]) -> dict[str, bool]:
        try:
            machines.open(trace_of(body), *_commit_of(body))
        except Full:
            raise HTTPException(503, "all machines are taken", {"Retry-After": str(RETRY_S)}) from None
        return {"ready": True}

    @app.post("/session/end")
    def end(body: dict[str, Any]) -> dict[str, bool]:
        return {"closed": machines.close(trace_of(body))}

    @app.get("/machines")
    def counts() -> dict[str, int]:
        return machines.counts()

    @app.post("/tools/{name}")
    def call_tool(name: str, call: dict[str, Any]) -> dict[str, str]:
        if name not in TOOLS:
            raise HTTPException(404)  # a configuration error: the dry run finds it
        parameter, run = TOOLS[name]
        try:
            checkout = machines.checkout(trace_of(call))
        except Gone as error:
            raise HTTPException(500, str(error)) from None  # not the model's error: the rollout is started again
        try:
            argument = json.loads(call["arguments"])[parameter]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise HTTPException(422, f"give a {parameter}") from None  # the model reads this and continues
        if not isinstance(argument, str):
            raise HTTPException(422, f"give a {parameter} as a text")
        try:
            return {"output": run(argument, checkout)}
        except Refused as error:
            raise HTTPException(422, str(error)) from None

    @app.post("/grade/f1")
    def grade(body: dict[str, Any]) -> dict[str, Any]:
        answer, files = body["sample"]["output_text"] or "", body["item"]["files"]
        return {"score": plans.f1(answer, files), "reason": plans.reason(answer, files)}

    @app.post("/grade/exact")
    def grade_exactly(body: dict[str, Any]) -> dict[str, float]:
        """Return the held-out grade, with the files of the commit itself instead of the row's files."""
        files = machines.repositories.touched(*_commit_of(body))
        return {"score": plans.exact(body["sample"]["output_text"] or "", files)}

    return app


def _commit_of(body: dict[str, Any]) -> tuple[str, str]:
    """Return the repository and the commit of the row in a request's body."""
    try:
        return str(body["item"]["repository"]), str(body["item"]["commit"])
    except (KeyError, TypeError):
        raise HTTPException(422, "the row needs repository and commit: see make_data.py") from None


def own_folder() -> Path:
    """Create a folder for this server alone, which is removed when the server exits."""
    folder = Path(tempfile.mkdtemp(prefix="edit-planning-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


async def _sweep(machines: Machines) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        await asyncio.to_thread(machines.close_idle)


app = make_app(
    Machines(
        Repositories(Path(os.environ.get("EDIT_PLANNING_REPOSITORIES", REPOSITORIES))),
        own_folder(),
    )
)
