"""The values that a JSON body may contain: those that any database can store and any endpoint accepts."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

MAX_DEPTH = 100
"""Far more than any schema needs, far less than the depth at which recursion over a value fails."""
_SPECIAL = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


class _Unusable(ValueError):
    """A value that JSON syntax allows and a body must not contain."""


def body_mistake(body: bytes) -> str | None:
    """Returns why a body cannot be used, or None if it can.

    Refused are bodies that are not valid JSON, numbers beyond a float's range, lone surrogates (UTF-8 cannot encode
    them), NUL characters (PostgreSQL cannot store them), and values nested more than MAX_DEPTH deep.
    """
    try:
        value = json.loads(body, parse_constant=_refuse_constant, parse_float=_finite)
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
