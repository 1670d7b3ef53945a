"""Request bodies: encoding as JSON in UTF-8, and size limits."""

from __future__ import annotations

import json
from typing import Any

MAX_REQUEST_BYTES = 1_000_000
"""The wire contract's limit for the body of a tool call."""
MAX_ROW_BYTES = MAX_REQUEST_BYTES // 2
"""Maximum size in bytes of a row in a request: half of the maximum request.

The other half of the request is for the arguments of the call, about 100,000 tokens."""


def encode_json(value: Any) -> bytes:
    """Encode `value` as JSON in UTF-8.

    Only unpaired surrogates become JSON escapes, because UTF-8 cannot encode them. Other escapes would waste space.
    """
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace")
