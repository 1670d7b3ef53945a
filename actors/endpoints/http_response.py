"""HTTP responses of endpoints: parsing, and formatting for messages."""

from __future__ import annotations

import math
import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple

from agent_rft.rows.strict_json import ParsedJson

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # control sequences, such as colors
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # strings, such as a window's title
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
MAX_TEXT_BYTES = 65_536
"""Maximum size of a body's text. The limit bounds the time for cleaning the text. Messages contain only the start."""


class ErrorInfo(NamedTuple):
    """An error in OpenAI's format, `{"error": {"message", "type", "code", "param"}}`; missing fields are ""."""

    message: str = ""
    type: str = ""
    code: str = ""
    param: str = ""


class HttpResponse(NamedTuple):
    """The response to a call's last attempt.

    `latency_s` is the latency of the last attempt alone. `retries` counts the earlier attempts that failed. An attempt
    does not count as failed if the endpoint asked the client to wait. If `truncated` is True, `body` contains only the
    first MAX_BODY_BYTES. `sent_bytes` is the size of the request body. `content` is the JSON in the body, or the error
    if the body is truncated or is not valid JSON.
    """

    status: int
    body: bytes
    latency_s: float
    retries: int
    truncated: bool
    sent_bytes: int
    content: ParsedJson | ValueError

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as text, for messages; at most its first MAX_TEXT_BYTES bytes."""
        return self.body[:MAX_TEXT_BYTES].decode(errors="replace")

    def json(self) -> Any:
        """Return the JSON value in the body.

        Raises:
            ValueError: The body is truncated, is not valid JSON, or has a number that is not finite.
        """
        if isinstance(self.content, ValueError):
            raise self.content
        return self.content.check_numbers().value

    @property
    def json_object(self) -> dict[str, Any] | None:
        """The JSON object in the body; None if the body is truncated or is not a JSON object.

        Its numbers may be infinite or NaN.
        """
        value = None if isinstance(self.content, ValueError) else self.content.value
        return value if isinstance(value, dict) else None

    @property
    def json_problem(self) -> str:
        """The reason why the body is not valid JSON, as the end of a message; empty if the body is valid."""
        return f": {self.content}" if isinstance(self.content, ValueError) else ""

    @property
    def error(self) -> ErrorInfo:
        """The error in the body; its fields are empty if the body contains no error, and have a maximum length."""
        error = (self.json_object or {}).get("error")
        if not isinstance(error, dict):
            return ErrorInfo()
        fields = (text if isinstance(text := error.get(key), str) else "" for key in ErrorInfo._fields)
        return ErrorInfo(*(text[:MAX_TEXT_BYTES] for text in fields))

    @property
    def reason(self) -> str:
        """Error message in the body; `text` if it has no message. May contain secrets and control codes."""
        error = self.error
        if not error.message:
            return self.text
        return f"{error.message} [{error.code}]" if error.code else error.message

    @property
    def has_no_credit(self) -> bool:
        """Whether the endpoint refuses the request because an account has no credit left.

        The code and the type of the error decide this. The text of the body is searched only if both are missing,
        because OpenAI's messages about rate limits also mention the billing page.
        """
        if self.status not in (401, 403, 429):
            return self.status == 402
        error = self.error
        text = f"{error.code} {error.type}" if error.code or error.type else self.text
        return "insufficient_quota" in text or "billing" in text.lower()


def parse_retry_after_s(value: str, now: float) -> float | None:
    """Return the wait in seconds that a Retry-After header (RFC 9110, 10.2.3) asks for; None if it is invalid.

    `now`, in Unix seconds, is used for a header that contains a date.
    """
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        seconds = max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
    return seconds if seconds >= 0 and not math.isnan(seconds) else None


def format_status(status: int) -> str:
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def to_one_line(text: str) -> str:
    """Return `text` on one line, without escape sequences and control characters, for messages and logs."""
    return " ".join(_CONTROLS.sub(" ", _ESCAPES.sub("", text)).split())


def truncate(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[:chars] + "..."
