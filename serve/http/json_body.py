"""Checks of the size and values of JSON request bodies.

Values are counted before the body is parsed. A million empty lists are only 3 MB of JSON, but use 60 MB of memory and
seconds of CPU time.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

MAX_VALUES = 25_000
"""Maximum values in a body: enough for 2,000 turns with one call each, or for 128 tools with 60 parameters each."""
MAX_DEPTH = 100
"""Maximum nesting depth of a body: far more than any schema needs, and far below Python's recursion limit."""
_SPECIAL = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


class _ValueNotAllowed(ValueError):
    """The body contains a value that is valid JSON but not allowed."""


def find_body_problem(body: bytes) -> str | None:
    """Return the problem with a request body as a clause, or None if the body is accepted.

    A body must be valid JSON with at most MAX_VALUES values, nested at most MAX_DEPTH deep. It must not contain:

    - numbers beyond a float's range
    - lone surrogates, which UTF-8 cannot encode
    - NUL characters, which PostgreSQL cannot store
    """
    try:
        text = body.decode("utf-8-sig")  # json.loads would also accept UTF-16
        if has_many_values(text):
            return f"it has more than {MAX_VALUES:,} values"
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_finite)
        if _SPECIAL.search(body):
            _check_characters(json.dumps(value, ensure_ascii=False))
    except UnicodeError:
        return "it is not valid UTF-8"
    except RecursionError:
        return f"it is nested more than {MAX_DEPTH} levels deep"
    except (json.JSONDecodeError, _ValueNotAllowed) as error:
        return str(error)
    except ValueError:  # int() refuses more than 4,300 digits
        return "it contains a number with too many digits"
    return f"it is nested more than {MAX_DEPTH} levels deep" if _is_deep(value) else None


def has_many_values(text: str) -> bool:
    """Return whether JSON text contains more than MAX_VALUES values."""
    if _count_separators(text) <= MAX_VALUES:
        return False
    text = text.replace("\\\\", "").replace('\\"', "")
    if text.count('"') > 4 * MAX_VALUES:  # each value has at most two strings: its key and the value
        return True
    return sum(map(_count_separators, text.split('"')[::2])) >= MAX_VALUES


def _count_separators(text: str) -> int:
    """Return an upper bound on the number of values in arrays and objects."""
    return text.count(",") + text.count("[") + text.count("{")


def _refuse_constant(name: str) -> NoReturn:
    raise _ValueNotAllowed(f"it contains {name}, which is not valid JSON")


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _ValueNotAllowed("it contains a number that is too large")
    return number


def _check_characters(text: str) -> None:
    """Check JSON text, encoded with `ensure_ascii=False`, for characters that cannot be stored.

    Raises:
        UnicodeError: The text contains a lone surrogate.
        _ValueNotAllowed: The text contains a NUL character.
    """
    text.encode()
    if re.search(r"(?<!\\)(?:\\\\)*\\u0000", text):
        raise _ValueNotAllowed("it contains the character \\u0000")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = (
            [
                child
                for parent in level
                for child in (parent.values() if isinstance(parent, dict) else parent)
                if isinstance(child, (dict, list))
            ]
            if isinstance(level[0], (dict, list))
            else []
        )
        if not level:
            return False
    return True
