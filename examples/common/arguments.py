"""Parser for the argument of a tool call, which a model wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import HTTPException


def text_argument(call: Mapping[str, Any], name: str) -> str:
    """Return the argument `name` of a tool call as a string; a number is converted.

    Raises:
        HTTPException: The argument is missing or is not a string. The model reads the message and continues.
    """
    try:
        value = json.loads(call["arguments"])[name]
        if isinstance(value, str | int | float):
            text = str(value)
            text.encode()  # half a character could not be sent back
            return text
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise HTTPException(422, f"give {name}, a text")
