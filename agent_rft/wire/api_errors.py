"""Errors in the wire format: `{"error": {message, type, param, code}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

MAX_MESSAGE_CHARS = 2_000
MAX_PARAM_CHARS = 200


class ErrorDetail(BaseModel):
    """Description of an error in an error response."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    message: str
    """The problem and how to fix it."""
    type: str
    """Category of the error, such as invalid_request_error or rate_limit_error."""
    param: str | None
    """Path of the invalid field in the request, such as `method.reinforcement.grader.url`, or null."""
    code: str | None
    """Machine-readable code of the error; the manual lists the codes of problems with jobs."""


class ErrorBody(BaseModel):
    """Body of every error response."""

    error: ErrorDetail


class ApiError(Exception):
    """Exception that the server converts to an error response.

    `cause` describes the underlying error. It is written only to the server's log, because clients must not see it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        type: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
        cause: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.type = type
        self.headers = dict(headers or {})
        self.cause = cause


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of the error response for an `ApiError`."""
    param = None if error.param is None else truncate(error.param, MAX_PARAM_CHARS)
    detail = {
        "message": truncate(error.message, MAX_MESSAGE_CHARS),
        "type": error.type,
        "param": param,
        "code": error.code,
    }
    return {"error": detail}


def truncate(text: str, limit: int) -> str:
    """Return the first `limit` characters of a text, followed by an ellipsis if the text is longer."""
    return text if len(text) <= limit else f"{text[:limit]}…"
