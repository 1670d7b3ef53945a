"""Checks of API keys and other values from environment variables, which never print the value."""

from __future__ import annotations

import re
from collections.abc import Mapping

KEY_FIX = "copy the key again, without quotes and line breaks"


def read_variable(environment: Mapping[str, str], name: str) -> str | None:
    """Return an environment variable without white space around it, such as a line break; None if it is empty."""
    return environment.get(name, "").strip() or None


def find_key_problem(key: str) -> str | None:
    """Return the problem with a key, as the predicate of a sentence; None if the key can be sent in a header."""
    if not key.isascii():
        return "contains non-ASCII characters, such as curly quotes"
    if re.search(r"[\x00-\x20\x7f]", key):
        return "contains a line break, a space or a control character"
    if len(key) > 1 and key[0] == key[-1] and key[0] in "\"'`":
        return "is enclosed in quotes"
    return None
