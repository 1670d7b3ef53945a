"""HTTP server for sessions, tools and grades: `uvicorn examples.swe.server:app --port 8032`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from agent_rft import NoSandbox
from examples.common.sessions import IDLE_S, Full, Gone, Sessions, trace_of
from examples.swe import grading, runs
from examples.swe.workspace import TOOLS, Workspace

MAX_OPEN: Final = 64
"""Maximum open sessions of all jobs on this server. A job's `max_open` must not be larger."""
RETRY_S: Final = 5
GRADES: Final[dict[str, Callable[[Workspace], grading.Verdict]]] = {
    "grade": grading.grade,
    "untouched": grading.untouched,
    "passed": grading.passed,
    "style": grading.style,
    "habit": grading.habit,
}


def make_app(
    run: runs.Run = runs.sandboxed, wait_s: float = runs.WAIT_S, clock: Callable[[], float] = time.monotonic
) -> FastAPI:
    """Return the server. `run` runs code in a sandbox; a call waits up to `wait_s` for earlier calls of its rollout."""
    app = FastAPI()
    sessions = Sessions[Workspace](MAX_OPEN, idle_s=IDLE_S, clock=clock)

    def workspace_of(body: dict[str, Any]) -> Workspace:
        try:
            return sessions.get(trace_of(body))
        except Gone:
            why = "this rollout has no session: give the job `session` with this server's start_url"
            raise HTTPException(409, why) from None

    @app.exception_handler(NoSandbox)
    def no_sandbox(_: Request, error: NoSandbox) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 500)  # neither the model nor its grade can help it

    @app.exception_handler(runs.Busy)
    def busy(_: Request, __: runs.Busy) -> JSONResponse:
        return JSONResponse({"detail": "too much runs at a time"}, 503, {"Retry-After": str(RETRY_S)})

    # Both without a thread: runs may hold all of them.

    @app.post("/session/start")
    async def start(body: dict[str, Any]) -> dict[str, Any]:
        try:
            sessions.open(trace_of(body), lambda: Workspace(body["item"], run))
        except Full:
            raise HTTPException(503, "all sessions are in use", headers={"Retry-After": str(RETRY_S)}) from None
        except (KeyError, TypeError, ValueError) as error:
            raise HTTPException(422, f"not a row of this example: {error}") from None
        return {"ready": True}

    @app.post("/session/end")
    async def end(body: dict[str, Any]) -> dict[str, Any]:
        return {"ended": sessions.close(trace_of(body))}

    @app.post("/tools/{name}")
    def call_tool(name: str, call: dict[str, Any]) -> dict[str, Any]:
        if (tool := TOOLS.get(name)) is None:
            raise HTTPException(404)  # a configuration error: the dry run names this endpoint
        workspace = workspace_of(call)
        this = (call["call_id"], name, call["arguments"])
        with runs.held(workspace.lock, wait_s):
            if this not in workspace.answers:  # else it was sent again
                try:
                    workspace.answers[this] = tool.call(workspace, json.loads(call["arguments"]))
                except (ValueError, RecursionError) as error:
                    raise HTTPException(422, str(error)) from None  # the model reads this and continues
            output = workspace.answers[this]
        return {"type": "function_call_output", "id": call.get("id"), "call_id": call["call_id"], "output": output}

    @app.post("/{kind}")
    def grade(kind: str, body: dict[str, Any]) -> dict[str, Any]:
        if kind not in GRADES:
            raise HTTPException(404)
        workspace = workspace_of(body)
        with runs.held(workspace.lock, wait_s):
            score, reason = GRADES[kind](workspace)
        return {"score": score, "reason": reason}

    return app


app = make_app()
