"""Errors in the wire form: `{"error": {message, type, param, code}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

MAX_MESSAGE_CHARS = 2_000
MAX_PARAM_CHARS = 200


class ErrorDetail(BaseModel):
    """What went wrong."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    message: str
    """What went wrong and what to do."""
    type: str
    """The family of the error, such as invalid_request_error or rate_limit_error."""
    param: str | None
    """The field of the request that is wrong, such as `method.reinforcement.grader.url`; null: none."""
    code: str | None
    """A code that programs can compare; the manual lists the codes of problems in jobs."""


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: ErrorDetail


class ApiError(Exception):
    """An error response, raised where the error is found.

    `cause` is for the server's log only: what failed, in words that clients must not see.
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


def body_of(error: ApiError) -> dict[str, Any]:
    """Returns an error in the wire form."""
    param = None if error.param is None else cut(error.param, MAX_PARAM_CHARS)
    detail = {"message": cut(error.message, MAX_MESSAGE_CHARS), "type": error.type, "param": param, "code": error.code}
    return {"error": detail}


def cut(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, with an ellipsis if it was longer."""
    return text if len(text) <= limit else f"{text[:limit]}…"
