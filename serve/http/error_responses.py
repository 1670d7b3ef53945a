"""Error responses of the API: `{"error": {message, type, param, code}}` with the matching HTTP status.

Error responses never contain a traceback or a secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from agent_rft.actors.runtime.fair_slots import NoFreeSlot
from agent_rft.errors import InvalidJob, UserError
from agent_rft.serve.jobs.client_errors import replace_fix
from agent_rft.serve.stores.database import describe_error, is_unavailable
from agent_rft.spec.config_reader import describe_json_error, format_key_path, to_key_path
from agent_rft.wire.api_errors import MAX_PARAM_CHARS, ApiError, error_body, truncate
from agent_rft.wire.request_keys import UNSUPPORTED

PREFIX = "/v1"
"""Path prefix of the API's routes."""
MAX_SHOWN_ERRORS = 5
MAX_REQUIREMENT_CHARS = 2_000
"""Maximum length of the text about one invalid value. The text may contain names and ids of the client."""
INTERNAL = "Internal server error. Search for the request id in logs/server-*.log in the server's folder."
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_MESSAGES = {
    404: "Unknown URL: {method} {path}",
    405: "{path} does not support {method}.",
    400: "The request body cannot be read.",
}


def make_not_found_error(what: str, id: str, param: str) -> ApiError:
    """Return the 404 error for an unknown id. `what` is the kind of object, such as "job"."""
    return ApiError(404, f"No such {what}: {truncate(id, 100)}", param=param, code="not_found")


def error_response(error: ApiError) -> JSONResponse:
    return JSONResponse(error_body(error), error.status, error.headers)


def internal_error(cause: str = "") -> ApiError:
    """Return the 500 error for an unexpected failure."""
    return ApiError(500, INTERNAL, type="server_error", code="internal_error", cause=cause)


def make_unexpected_api_error(error: Exception) -> ApiError:
    """Return the error for an unexpected exception: 503 if the database is unavailable, otherwise 500."""
    if not is_unavailable(error):
        return internal_error()
    message = "The server's database is unavailable. Try again in a few seconds."
    return ApiError(
        503,
        message,
        code="database_unavailable",
        type="server_error",
        headers={"Retry-After": "5"},
        cause=f"the database is unavailable: {describe_error(error)}",
    )


def install_handlers(app: FastAPI) -> None:
    """Install exception handlers that respond to expected errors in the API's format.

    `agent_rft.serve.http.middleware` handles unexpected exceptions.
    """

    @app.exception_handler(ApiError)
    async def _handle_api_error(request: Request, error: ApiError) -> JSONResponse:
        request.state.failure = error
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def _handle_invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(_from_validation_errors(error.errors(), error.body))

    @app.exception_handler(HTTPException)
    async def _handle_http_exception(request: Request, error: HTTPException) -> JSONResponse:
        return error_response(_from_http_exception(request, error))

    @app.exception_handler(NoFreeSlot)
    async def _handle_no_slot(request: Request, error: NoFreeSlot) -> JSONResponse:
        message = f"Too many trials of graders and tools are running: {error}. Try again in a moment."
        return error_response(make_too_many_error(message, "too_many_trials", 5))

    @app.exception_handler(UserError)
    async def _handle_user_error(request: Request, error: UserError) -> JSONResponse:
        return error_response(make_user_api_error(error))


def make_too_many_error(message: str, code: str, retry_s: int) -> ApiError:
    """Return the 429 error for too many concurrent requests; clients retry after `retry_s`."""
    return ApiError(429, message, code=code, type="rate_limit_error", headers={"Retry-After": str(retry_s)})


def make_not_ready_error(why: str, retry_s: int) -> ApiError:
    """Return the 503 error for a request that will succeed later; clients retry after `retry_s`."""
    message = f"The result is not ready: {why}. Try again in a few seconds."
    return ApiError(503, message, code="not_ready", type="server_error", headers={"Retry-After": str(retry_s)})


def make_user_api_error(error: UserError, param: str | None = None) -> ApiError:
    """Return the 400 error for a UserError. For an InvalidJob, code and param come from the first problem."""
    if not isinstance(error, InvalidJob) or not error.problems:
        return ApiError(400, error.public_message, param=param, code="invalid_request")
    first = error.problems[0]
    shown = map(replace_fix, error.problems[:MAX_SHOWN_ERRORS])
    texts = [f"{problem.field}: {problem.message}; {problem.fix}" for problem in shown]
    return ApiError(400, "\n".join(texts), param=first.field, code=first.code)


def _from_validation_errors(errors: Sequence[Mapping[str, Any]], body: Any) -> ApiError:
    found: list[tuple[str | None, str, str]] = []
    for error in errors[:MAX_SHOWN_ERRORS]:  # a large body may have an error per value
        origin, *loc = error["loc"]
        kind = str(error["type"])
        if kind == "json_invalid":
            why = error.get("ctx", {}).get("error", "")
            return ApiError(400, f"The request body is not valid JSON: {why}", code="invalid_json")
        raw = body if origin == "body" else dict.fromkeys(loc)
        place = to_key_path(loc, raw, missing=bool(loc) and kind == "missing")
        path = truncate(format_key_path(place), MAX_PARAM_CHARS)
        found.append((path or None, truncate(describe_json_error(path, error), MAX_REQUIREMENT_CHARS), kind))
    param, _, kind = found[0]
    code = "missing_required_parameter" if kind == "missing" else "invalid_value"
    code = "unknown_parameter" if kind in ("extra_forbidden", UNSUPPORTED) else code
    return ApiError(400, "; ".join(text for _, text, _ in found), param=param, code=code)


def _from_http_exception(request: Request, error: HTTPException) -> ApiError:
    status = 400 if error.status_code == 422 else error.status_code
    template = _MESSAGES.get(status, str(error.detail))
    message = template.format(method=request.method, path=truncate(request.url.path, 200))
    if status == 404 and _is_route_without_prefix(request):
        message += f". Set the base URL to {truncate(base_url(request), MAX_PARAM_CHARS)}"
    code = {404: "unknown_url", 405: "method_not_allowed", 413: "too_large"}.get(status)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return ApiError(status, message, code=code, type=kind, headers=error.headers)


def base_url(request: Request) -> str:
    """Return the API's base URL, with the host that the client used for this request."""
    return str(request.base_url).rstrip("/") + PREFIX


def _is_route_without_prefix(request: Request) -> bool:
    scope = {**request.scope, "path": PREFIX + request.url.path}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
