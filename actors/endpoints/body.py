"""Request bodies: JSON in UTF-8, and how large they may be."""

from __future__ import annotations

import json
from typing import Any

MAX_REQUEST_BYTES = 1_000_000
"""The wire contract's limit for the body of a tool call."""
MAX_ROW_BYTES = MAX_REQUEST_BYTES // 2
"""Largest row that travels in requests. The other half is for the arguments of a call: a hundred thousand tokens."""


def json_body(value: Any) -> bytes:
    """`value` as JSON in UTF-8, so that a character takes at most four bytes, not the twelve of its JSON escapes.

    Only a lone surrogate, which UTF-8 does not have, is written as its JSON escape.
    """
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace")
