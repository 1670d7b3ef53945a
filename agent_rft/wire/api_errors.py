"""Errors in the wire format: `{"error": {message, type, param, code}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

MAX_MESSAGE_CHARS = 2_000
MAX_PARAM_CHARS = 200


class ErrorDetail(BaseModel):
    """Description of an error."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    message: str
    """The problem and how to fix it."""
    type: str
    """Category of the error, such as invalid_request_error or rate_limit_error."""
    param: str | None
    """Invalid field of the request, such as `method.reinforcement.grader.url`; null: the error is not about a field."""
    code: str | None
    """Code for programs to compare; the manual lists the codes of problems in jobs."""


class ErrorBody(BaseModel):
    """Body of every error response."""

    error: ErrorDetail


class ApiError(Exception):
    """Exception that becomes an error response.

    `cause` is the underlying error, for the server's log only: clients must not see it.
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
    """Return an error in the wire format."""
    param = None if error.param is None else truncate(error.param, MAX_PARAM_CHARS)
    detail = {
        "message": truncate(error.message, MAX_MESSAGE_CHARS),
        "type": error.type,
        "param": param,
        "code": error.code,
    }
    return {"error": detail}


def truncate(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, with an ellipsis if it was longer."""
    return text if len(text) <= limit else f"{text[:limit]}…"
