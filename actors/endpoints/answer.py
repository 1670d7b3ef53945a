"""An endpoint's HTTP response, and how it is parsed and shown."""

from __future__ import annotations

import json
import math
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple


class HttpAnswer(NamedTuple):
    """The response of a call's last attempt.

    `latency_s` is that of this attempt alone; `retries` counts the failed attempts before it, without those that asked
    us to wait; `truncated` says that `body` holds only the first MAX_BODY_BYTES.
    """

    status: int
    body: bytes
    latency_s: float
    retries: int
    truncated: bool = False

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


def cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[:chars] + "..."
