"""Parsing of JSON from users and endpoints, without the extensions of Python's parser.

`NaN`, infinite numbers and integers with thousands of digits are errors, because other programs cannot read them.
`parse_untrusted_json` also bounds the number of values and their depth, so that a short text cannot fill the memory.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from typing import Any, NamedTuple

MAX_SHOWN_CHARS = 20
"""Maximum number of characters of a number or key that an error message shows."""
MAX_VALUES = 100_000
"""Maximum number of values in untrusted JSON. This many values take at most 0.2 s of CPU time and 30 MiB."""
MAX_DEPTH = 100
"""Maximum nesting depth of untrusted JSON: far more than any data needs, and far below Python's recursion limit."""
TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


class ParsedJson(NamedTuple):
    """A JSON value.

    `duplicate_keys` are the keys that occur more than once in one of its objects. Only their last values count.
    `number_error` is the error in the first number that is not finite; empty if all numbers are finite.
    """

    value: Any
    duplicate_keys: tuple[str, ...] = ()
    number_error: str = ""

    def check_numbers(self) -> ParsedJson:
        """Return this object.

        Raises:
            ValueError: A number is not finite.
        """
        if self.number_error:
            raise ValueError(self.number_error)
        return self


def parse_untrusted_json(text: str | bytes, max_values: int = MAX_VALUES) -> ParsedJson:
    """Parse JSON with at most `max_values` values, nested at most MAX_DEPTH levels deep.

    Numbers that are not finite are accepted; the caller may refuse them with `ParsedJson.check_numbers`. The values
    are counted before they are created: a million empty lists are 3 MB of JSON, but 60 MB of memory.

    Raises:
        ValueError: The text is not valid JSON in UTF-8, or exceeds a limit. The message has the reason.
    """
    encoded = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if _has_many_values(encoded, max_values):
        raise ValueError(f"it has more than {max_values:,} values")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")  # json.loads would also accept UTF-16
        except UnicodeDecodeError:
            raise ValueError("it is not UTF-8 text") from None
    try:
        parsed = _parse(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if encoded.count(b"[") + encoded.count(b"{") > MAX_DEPTH and _is_deep(parsed.value):
        raise ValueError(TOO_DEEP)
    return parsed


def parse_json(text: str | bytes) -> ParsedJson:
    """Parse JSON of any size, such as a row of a job.

    Raises:
        ValueError: The text is not valid JSON. The message has the reason, and the place if it is known.
    """
    try:
        return _parse(text).check_numbers()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None


def _parse(text: str | bytes) -> ParsedJson:
    duplicates: dict[str, None] = {}
    number_error = ""

    def to_constant(name: str) -> float:
        nonlocal number_error
        number_error = number_error or f"{name} is not a JSON number"
        return float(name)

    def to_float(digits: str) -> float:
        nonlocal number_error
        number = float(digits)
        if not math.isfinite(number):
            number_error = number_error or f"the number {digits[:MAX_SHOWN_CHARS]} is too large"
        return number

    def to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            duplicates.update(dict.fromkeys(key for key in found if counts[key] > 1))
        return found

    try:
        value = json.loads(
            text,
            object_pairs_hook=to_object,
            parse_constant=to_constant,
            parse_float=to_float,
            parse_int=_parse_int,
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"{error.msg} at {line}column {error.colno}") from None
    return ParsedJson(value, tuple(duplicates), number_error)


def _has_many_values(encoded: bytes, max_values: int) -> bool:
    """Return whether JSON in UTF-8 contains more than `max_values` values. Does not parse the JSON."""
    if _count_separators(encoded) < max_values:
        return False
    encoded = encoded.replace(rb"\\", b"").replace(rb"\"", b"")
    if encoded.count(b'"') > 4 * max_values:  # each value has at most two strings: its key and the value
        return True
    return sum(map(_count_separators, encoded.split(b'"')[::2])) >= max_values


def _is_deep(value: Any) -> bool:
    """Return whether a parsed value is nested more than MAX_DEPTH levels deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            if isinstance(parent, (dict, list))
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def _count_separators(encoded: bytes) -> int:
    """Return an upper bound on the number of values in arrays and objects."""
    return encoded.count(b",") + encoded.count(b"[") + encoded.count(b"{")


def _parse_int(text: str) -> int:
    limit = sys.get_int_max_str_digits()
    if 0 < limit < len(text):
        raise ValueError(
            f"the number {text[:MAX_SHOWN_CHARS]}... has {len(text):,} digits; at most {limit:,} are allowed"
        )
    return int(text)
