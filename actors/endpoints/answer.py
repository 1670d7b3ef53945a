"""An endpoint's HTTP response, and how it is parsed and shown."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # control sequences, such as colors
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # strings, such as a window's title
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class ErrorInfo(NamedTuple):
    """An error in the form of OpenAI's API, `{"error": {"message", "type", "code", "param"}}`; absent texts are ""."""

    message: str = ""
    type: str = ""
    code: str = ""
    param: str = ""


class HttpAnswer(NamedTuple):
    """The response of a call's last attempt.

    `latency_s` is that of this attempt alone; `retries` counts the failed attempts before it, without those that asked
    us to wait; `truncated` says that `body` holds only the first MAX_BODY_BYTES; `sent_bytes` is the size of the
    request's body.
    """

    status: int
    body: bytes
    latency_s: float
    retries: int
    truncated: bool = False
    sent_bytes: int = 0

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: it is not valid JSON.
        """
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("nested too deeply") from None

    @property
    def json_object(self) -> dict[str, Any] | None:
        """The JSON object in the body; None if the body is truncated or something else."""
        try:
            body = None if self.truncated else self.json()
        except ValueError:
            return None
        return body if isinstance(body, dict) else None

    @property
    def error(self) -> ErrorInfo:
        """The error in the body, as far as it has one."""
        error = (self.json_object or {}).get("error")
        if not isinstance(error, dict):
            return ErrorInfo()
        return ErrorInfo(*(text if isinstance(text := error.get(key), str) else "" for key in ErrorInfo._fields))

    @property
    def reason(self) -> str:
        """Why the endpoint gave no other answer, in its own words; may contain secrets and control characters."""
        error = self.error
        if not error.message:
            return self.text
        return f"{error.message} [{error.code}]" if error.code else error.message

    @property
    def has_no_credit(self) -> bool:
        """Whether the endpoint refuses because an account has no credit left.

        The code and type of the error decide; only a body without them is searched for words. A message of OpenAI about
        a rate limit names its billing page, too.
        """
        if self.status not in (401, 403, 429):
            return self.status == 402
        error = self.error
        said = f"{error.code} {error.type}" if error.code or error.type else self.text
        return "insufficient_quota" in said or "billing" in said.lower()


def retry_after_s(value: str, now: float) -> float | None:
    """The header Retry-After (RFC 9110, 10.2.3) in seconds from `now` (Unix time); None if it is invalid."""
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        seconds = max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
    return seconds if seconds >= 0 and not math.isnan(seconds) else None


def status_text(status: int) -> str:
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def one_line(text: str) -> str:
    """A text for messages and logs: on one line, without escape sequences and control characters."""
    return " ".join(_CONTROLS.sub(" ", _ESCAPES.sub("", text)).split())


def cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[:chars] + "..."
