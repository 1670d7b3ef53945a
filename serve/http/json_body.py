"""Checks of the size and values of JSON request bodies."""

from __future__ import annotations

import json
import re

from agent_rft.rows.strict_json import parse_untrusted_json

MAX_VALUES = 25_000
"""Maximum values in a body: enough for 2,000 turns with one call each, or for 128 tools with 60 parameters each."""
_SPECIAL = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


def find_body_problem(body: bytes) -> str | None:
    """Return the problem with a request body as a clause, or None if the body is accepted.

    A body must be JSON that `parse_untrusted_json` accepts, with at most MAX_VALUES values. It must not contain:

    - lone surrogates, which UTF-8 cannot encode
    - NUL characters, which PostgreSQL cannot store
    """
    try:
        value = parse_untrusted_json(body, MAX_VALUES).check_numbers().value
        if _SPECIAL.search(body):
            text = json.dumps(value, ensure_ascii=False)
            text.encode()
            if re.search(r"(?<!\\)(?:\\\\)*\\u0000", text):
                return "it contains the character \\u0000"
    except UnicodeEncodeError:
        return "it contains half of a surrogate pair, which UTF-8 cannot encode"
    except ValueError as error:
        return str(error)
    return None
