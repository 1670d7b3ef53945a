"""Parsing of JSON from users and endpoints, without the extensions of Python's parser.

`NaN`, infinite numbers and integers with thousands of digits are refused, because other programs cannot read them.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any, NamedTuple

MAX_SHOWN_CHARS = 20
"""Maximum number of characters of a number or key that an error message shows."""


class ParsedJson(NamedTuple):
    """A JSON value, and the keys that occur more than once in one of its objects. Only their last values count."""

    value: Any
    duplicate_keys: tuple[str, ...] = ()


def parse_json(text: str | bytes) -> ParsedJson:
    """Parse JSON.

    Raises:
        ValueError: The text is not valid JSON. The message has the reason, and the column if it is known.
    """
    duplicates: dict[str, None] = {}

    def to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            duplicates.update(dict.fromkeys(key for key in found if keys.count(key) > 1))
        return found

    try:
        value = json.loads(
            text,
            object_pairs_hook=to_object,
            parse_constant=_reject_constant,
            parse_float=_parse_finite_float,
            parse_int=_parse_int,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from None
    return ParsedJson(value, tuple(duplicates))


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _parse_finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:MAX_SHOWN_CHARS]} is too large")
    return number


def _parse_int(text: str) -> int:
    limit = sys.get_int_max_str_digits()
    if 0 < limit < len(text):
        raise ValueError(
            f"the number {text[:MAX_SHOWN_CHARS]}... has {len(text):,} digits; at most {limit:,} are allowed"
        )
    return int(text)
