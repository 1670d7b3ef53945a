"""Tools and grader as HTTP endpoints. Requests need the token, if there is one, and never change the world.

An invalid request is answered with a 4xx status and one short sentence. The model reads this sentence if the arguments
of its call are invalid (422). For a document that does not exist, the output is an ordinary text.
"""

import asyncio
import hmac
import json
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from examples.ledger.latency import Latency
from examples.ledger.questions import grade
from examples.ledger.tools import TOOLS
from examples.ledger.world import World


class RefusedError(Exception):
    """A rejected request: the HTTP status and the message for the caller."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def create_app(world: World, token: str | None, latency: Latency | None = None) -> FastAPI:
    """Return an app with `POST /tools/{list,search,cat}` and `POST /grade`. `latency` slows the tools, for benchmarks.

    Raises:
        ValueError: The token is empty.
    """
    if token == "":
        raise ValueError("the token must not be empty")

    async def authorize(request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if token is not None and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise RefusedError(401, "error: the bearer token is missing or wrong")

    app = FastAPI(
        title="ledger",
        dependencies=[Depends(authorize)],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )

    @app.exception_handler(RefusedError)
    async def refuse(request: Request, refused: RefusedError) -> Response:
        return PlainTextResponse(refused.text, refused.status)

    @app.post("/tools/{name}")
    async def call_tool(name: str, request: Request) -> Response:
        if name not in TOOLS:
            raise RefusedError(404, f"error: unknown tool {name}")
        call = _json_object(await request.body(), 400, "the body")
        call_id = _text(call, "call_id", 400)
        arguments = _json_object(_text(call, "arguments", 400), 422, "arguments")
        tool = TOOLS[name]
        argument = _text(arguments, tool.parameter, 422)
        if len(arguments) > 1:
            raise RefusedError(422, f"error: {tool.parameter} must be the only argument")
        if latency is not None:
            await asyncio.sleep(latency.draw_s())
        output = tool.run(world, argument)
        return JSONResponse(
            {"type": "function_call_output", "id": call.get("id"), "call_id": call_id, "output": output}
        )

    @app.post("/grade")
    async def grade_sample(request: Request) -> Response:
        body = _json_object(await request.body(), 400, "the body")
        answer = _text(_object(body, "sample"), "output_text", 422)
        reference = _text(_object(body, "item"), "reference_answer", 422)
        try:
            score = grade(answer, reference)
        except ValueError as error:
            raise RefusedError(422, "error: reference_answer must be a list of numbers") from error
        return JSONResponse({"score": score})

    return app


def _json_object(text: str | bytes, status: int, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RefusedError(status, f"error: {what} must be a JSON object")
    return value


def _object(owner: dict[str, Any], key: str) -> dict[str, Any]:
    value = owner.get(key)
    if not isinstance(value, dict):
        raise RefusedError(422, f"error: {key} must be an object")
    return value


def _text(owner: dict[str, Any], key: str, status: int) -> str:
    value = owner.get(key)
    if not isinstance(value, str):
        raise RefusedError(status, f"error: {key} must be a string")
    return value
