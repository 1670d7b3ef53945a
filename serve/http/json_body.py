"""What a JSON body may hold: values that can be stored in any database and sent on to any endpoint."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

MAX_DEPTH = 100
"""Far more than any schema needs, far less than what recursion over a value stands."""
_SPECIAL = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")


def body_mistake(body: bytes) -> str | None:
    """Why a body cannot be used; None where it can. What is no JSON at all, numbers beyond a float, halves of surrogate
    pairs and NUL characters (which neither UTF-8 nor PostgreSQL hold), and nests without end.
    """
    try:
        value = json.loads(body, parse_constant=_no_number, parse_float=_finite)
        if _SPECIAL.search(body):
            _check_texts(json.dumps(value, ensure_ascii=False))
    except UnicodeError:
        return "it is no UTF-8 text"
    except RecursionError:
        return f"it is nested more than {MAX_DEPTH} deep"
    except json.JSONDecodeError as error:
        return str(error)
    except ValueError as error:
        return str(error) if str(error).startswith("it ") else "it holds a number with too many digits"
    return f"it is nested more than {MAX_DEPTH} deep" if _is_deep(value) else None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("it holds a number that is too large")
    return number


def _check_texts(text: str) -> None:
    """`text` is JSON with nothing escaped but what must be: a NUL is, a surrogate is not."""
    text.encode()
    if re.search(r"(?<!\\)(?:\\\\)*\\u0000", text):
        raise ValueError("it holds the character \\u0000")


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
