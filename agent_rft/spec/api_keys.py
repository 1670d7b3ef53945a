"""Checks of API keys and other values of environment variables. No message contains a value."""

from __future__ import annotations

import re
from collections.abc import Mapping

KEY_FIX = "copy the key again, without quotes or line breaks"


def read_variable(environment: Mapping[str, str], name: str) -> str | None:
    """Return the value of an environment variable without surrounding white space; None if it is empty or not set."""
    return environment.get(name, "").strip() or None


def find_key_problem(key: str) -> str | None:
    """Return the problem with a key, such as "is enclosed in quotes"; None if the key can be sent in a header."""
    if not key.isascii():
        return "contains non-ASCII characters, such as curly quotes"
    if re.search(r"[\x00-\x20\x7f]", key):
        return "contains a line break, a space or a control character"
    if len(key) > 1 and key[0] == key[-1] and key[0] in "\"'`":
        return "is enclosed in quotes"
    return None
