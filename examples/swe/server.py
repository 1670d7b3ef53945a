"""Sessions, tools and grades behind HTTP: `uvicorn examples.swe.server:app --port 8032`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from agent_rft_server import NoSandbox
from examples.swe import grading, runs
from examples.swe.workspace import TOOLS, Workspace

MAX_OPEN: Final = 64
"""As `max_open` of the jobs: sessions of this server, of all jobs together."""
GRADES: Final[dict[str, Callable[[Workspace], grading.Verdict]]] = {
    "grade": grading.grade,
    "untouched": grading.untouched,
    "passed": grading.passed,
    "style": grading.style,
    "habit": grading.habit,
}


def make_app(run: runs.Run = runs.sandboxed) -> FastAPI:
    """A server without sessions, and how it runs code of the model."""
    app = FastAPI()
    sessions: dict[str, Workspace] = {}
    lock = threading.Lock()

    def workspace_of(body: dict[str, Any]) -> Workspace:
        if (workspace := sessions.get(body["trace_id"])) is None:
            raise HTTPException(409, "this rollout has no session: give the job `session` with this server's start_url")
        return workspace

    @app.exception_handler(NoSandbox)
    def no_sandbox(_: Request, error: NoSandbox) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 500)  # neither the model nor its grade can help it

    @app.post("/session/start")
    def start(body: dict[str, Any]) -> dict[str, Any]:
        with lock:
            if body["trace_id"] in sessions:  # it was asked again
                return {"ready": True}
            if len(sessions) >= MAX_OPEN:
                raise HTTPException(503, "all sessions are in use", headers={"Retry-After": "5"})
            try:
                sessions[body["trace_id"]] = Workspace(body["item"], run)
            except (KeyError, TypeError, ValueError) as error:
                raise HTTPException(422, f"not a row of this example: {error}") from None
        return {"ready": True}

    @app.post("/session/end")
    def end(body: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return {"ended": sessions.pop(body["trace_id"], None) is not None}

    @app.post("/tools/{name}")
    def call_tool(name: str, call: dict[str, Any]) -> dict[str, Any]:
        if (tool := TOOLS.get(name)) is None:
            raise HTTPException(404)  # a configuration error: the dry run names this endpoint
        workspace = workspace_of(call)
        this = (call["call_id"], name, call["arguments"])
        with workspace.lock:
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
        with workspace.lock:
            score, reason = GRADES[kind](workspace)
        return {"score": score, "reason": reason}

    return app


app = make_app()
