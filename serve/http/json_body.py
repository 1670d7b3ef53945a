"""The values that a JSON body may contain: those that any database can store and any endpoint accepts.

Values are counted before a body is parsed: a million empty lists fit into 3 MB, and take 60 MB and seconds of each
layer that walks over them.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

MAX_VALUES = 25_000
"""Enough for 2,000 turns with a call each, or for 128 tools with 60 parameters each."""
MAX_DEPTH = 100
"""Far more than any schema needs, far less than the depth at which recursion over a value fails."""
_SPECIAL = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


class _Unusable(ValueError):
    """A value that JSON syntax allows and a body must not contain."""


def body_mistake(body: bytes) -> str | None:
    """Returns why a body cannot be used, or None if it can.

    Refused are bodies that are not valid JSON, numbers beyond a float's range, lone surrogates (UTF-8 cannot encode
    them), NUL characters (PostgreSQL cannot store them), more than MAX_VALUES values, and values nested more than
    MAX_DEPTH deep.
    """
    try:
        text = body.decode("utf-8-sig")  # json.loads would take UTF-16 too
        if has_many_values(text):
            return f"it has more than {MAX_VALUES:,} values"
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if _SPECIAL.search(body):
            _check_texts(json.dumps(value, ensure_ascii=False))
    except UnicodeError:
        return "it is not valid UTF-8"
    except RecursionError:
        return f"it is nested more than {MAX_DEPTH} deep"
    except (json.JSONDecodeError, _Unusable) as error:
        return str(error)
    except ValueError:  # int() refuses more than 4,300 digits
        return "it contains a number with too many digits"
    return f"it is nested more than {MAX_DEPTH} deep" if _is_deep(value) else None


def has_many_values(text: str) -> bool:
    """Whether JSON has more than MAX_VALUES values; up to its first mistake, if it is not valid."""
    if _num_openings(text) <= MAX_VALUES:
        return False
    text = text.replace("\\\\", "").replace('\\"', "")
    if text.count('"') > 4 * MAX_VALUES:  # each value is at most two strings, its key and itself
        return True
    return sum(map(_num_openings, text.split('"')[::2])) >= MAX_VALUES


def _num_openings(text: str) -> int:
    """Each value but the outermost one is the first of its list or object, or follows a comma."""
    return text.count(",") + text.count("[") + text.count("{")


def _refuse_constant(name: str) -> NoReturn:
    raise _Unusable(f"it contains {name}, which is not valid JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Unusable("it contains a number that is too large")
    return number


def _check_texts(text: str) -> None:
    """Checks JSON whose only escapes are the required ones: NUL characters are escaped, surrogates are not."""
    text.encode()
    if re.search(r"(?<!\\)(?:\\\\)*\\u0000", text):
        raise _Unusable("it contains the character \\u0000")


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
