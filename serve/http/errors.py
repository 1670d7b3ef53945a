"""Errors in the wire form: every failed request is answered with `{"error": {message, type, param, code}}`.

The answer's status fits the error. It never contains a traceback or a secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from agent_rft.actors.runtime.fair_slots import NoSlot
from agent_rft.errors import InvalidJob, RftError, UserError
from agent_rft.serve.jobs.problems import for_client
from agent_rft.serve.stores.database import is_unavailable, reason_of
from agent_rft.spec.reader import field_name, key_path_of
from agent_rft.wire.errors import MAX_PARAM_CHARS, ApiError, body_of, cut

PREFIX = "/v1"
"""Where the routes of the API begin."""
SHOWN_MISTAKES = 5
INTERNAL = "Internal server error. The server's log (logs/server-*.log in its folder) has the id of this request."
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_MESSAGES = {
    404: "Unknown URL: {method} {path}",
    405: "{path} does not support {method}.",
    400: "The request body cannot be read.",
}


def not_found(what: str, id: str, param: str) -> ApiError:
    """Returns the error for an id that does not exist."""
    return ApiError(404, f"No such {what}: {cut(id, 100)}", param=param, code="not_found")


def response_of(error: ApiError) -> JSONResponse:
    return JSONResponse(body_of(error), error.status, error.headers)


def internal_error(cause: str = "") -> ApiError:
    """Returns the error for an unexpected failure."""
    return ApiError(500, INTERNAL, type="server_error", code="internal_error", cause=cause)


def of_unexpected(error: Exception) -> ApiError:
    """Returns the error for an exception that no route expects: 503 if the database is unavailable, else 500."""
    if not is_unavailable(error):
        return internal_error()
    message = "The server's database is unavailable. Try again in a few seconds."
    return ApiError(
        503,
        message,
        code="database_unavailable",
        type="server_error",
        headers={"Retry-After": "5"},
        cause=f"the database is unavailable: {reason_of(error)}",
    )


def install_handlers(app: FastAPI) -> None:
    """Gives `app`'s errors the wire form, except unexpected exceptions, which `agent_rft.serve.http.frame` handles."""

    @app.exception_handler(ApiError)
    async def _api_error(request: Request, error: ApiError) -> JSONResponse:
        request.state.failure = error
        return response_of(error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return response_of(_of_validation(error.errors(), error.body))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        return response_of(_of_http(request, error))

    @app.exception_handler(NoSlot)
    async def _no_slot(request: Request, error: NoSlot) -> JSONResponse:
        message = f"Too many graders and tools are being tried at the same time: {error}. Try again in a moment."
        return response_of(too_many(message, "too_many_trials", 5))

    @app.exception_handler(UserError)
    async def _user_error(request: Request, error: UserError) -> JSONResponse:
        return response_of(of_user_error(error))


def too_many(message: str, code: str, retry_s: int) -> ApiError:
    """Returns the error for a bound on what is in progress; clients try again after `retry_s`."""
    return ApiError(429, message, code=code, type="rate_limit_error", headers={"Retry-After": str(retry_s)})


def not_ready(error: RftError, retry_s: int) -> ApiError:
    """Returns the error for a request that succeeds later; clients try again after `retry_s`."""
    message = f"Not ready: {error.message}. Try again in some seconds."
    return ApiError(503, message, code="not_ready", type="server_error", headers={"Retry-After": str(retry_s)})


def of_user_error(error: UserError, param: str | None = None) -> ApiError:
    """Returns a UserError of the layers below as a 400; the first problem of an InvalidJob sets `param`."""
    if not isinstance(error, InvalidJob) or not error.problems:
        return ApiError(400, error.public, param=param, code="invalid_request")
    first = error.problems[0]
    shown = map(for_client, error.problems[:SHOWN_MISTAKES])
    texts = [f"{problem.field}: {problem.message}; {problem.remedy}" for problem in shown]
    return ApiError(400, "\n".join(texts), param=first.field, code=first.code)


def _of_validation(errors: Sequence[Mapping[str, Any]], body: Any) -> ApiError:
    mistakes: list[tuple[str | None, str, str]] = []
    for error in errors[:SHOWN_MISTAKES]:  # there may be one for each value of a large body
        origin, *loc = error["loc"]
        kind = str(error["type"])
        if kind == "json_invalid":
            why = error.get("ctx", {}).get("error", "")
            return ApiError(400, f"The request body is not valid JSON: {why}", code="invalid_json")
        raw = body if origin == "body" else dict.fromkeys(loc)
        place = key_path_of(loc, raw, missing=bool(loc) and kind == "missing")
        message = str(error["msg"]).removeprefix("Value error, ")
        mistakes.append((cut(field_name(place), MAX_PARAM_CHARS) or None, message, kind))
    param, _, kind = mistakes[0]
    texts = [f"{place}: {message}" if place else message for place, message, _ in mistakes]
    code = "missing_required_parameter" if kind == "missing" else "invalid_value"
    code = "unknown_parameter" if kind == "extra_forbidden" else code
    return ApiError(400, "; ".join(texts), param=param, code=code)


def _of_http(request: Request, error: HTTPException) -> ApiError:
    status = 400 if error.status_code == 422 else error.status_code
    form = _MESSAGES.get(status, str(error.detail))
    message = form.format(method=request.method, path=cut(request.url.path, 200))
    if status == 404 and _is_route_without_prefix(request):
        message += f". The API is below {PREFIX}: set the base URL to {cut(base_url(request), MAX_PARAM_CHARS)}"
    code = {404: "unknown_url", 405: "method_not_allowed", 413: "too_large"}.get(status)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return ApiError(status, message, code=code, type=kind, headers=error.headers)


def base_url(request: Request) -> str:
    """Return the base URL for clients, by the host that the request names."""
    return str(request.base_url).rstrip("/") + PREFIX


def _is_route_without_prefix(request: Request) -> bool:
    scope = {**request.scope, "path": PREFIX + request.url.path}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
