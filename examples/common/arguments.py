"""The argument of a tool call, as a model wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import HTTPException


def text_argument(call: Mapping[str, Any], name: str) -> str:
    """One argument; a number is given as a text.

    Raises:
        HTTPException: there is no such text; the model reads why and continues.
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
