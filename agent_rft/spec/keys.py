"""Keys and URLs that people set: without the white space around them, and checked without being shown."""

from __future__ import annotations

import re
from collections.abc import Mapping

KEY_REMEDY = "copy the key again, without quotes and line breaks"


def variable(environment: Mapping[str, str], name: str) -> str | None:
    """Return a variable without the white space around it, such as the line break of a file; None if it is empty."""
    return environment.get(name, "").strip() or None


def key_mistake(key: str) -> str | None:
    """Return what is wrong with a key, as the rest of a sentence about it; None if it can be sent."""
    if not key.isascii():
        return "contains characters that no key has, such as curly quotes"
    if re.search(r"[\x00-\x20\x7f]", key):
        return "contains a line break, a blank or a control character"
    if len(key) > 1 and key[0] == key[-1] and key[0] in "\"'`":
        return "is in quotes"
    return None
