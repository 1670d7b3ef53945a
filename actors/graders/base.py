"""A grade is a finite number that a grader said. Whatever else it says is a failure, never 0."""

from __future__ import annotations

import json
import math
from typing import Any, Protocol

from trainer.errors import GraderFailed
from trainer.types import Grade


class Grader(Protocol):
    """Grades samples. `close` gives back what it holds (connections)."""

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        """The grade of `sample` (section 3 of the wire contract) for the dataset row `item`.

        Raises:
            GraderFailed: there is none.
            EndpointRefused: an endpoint answered 401 or 403.
        """

    async def close(self) -> None: ...


def finite_number(value: object, where: str) -> float:
    """`value` as a float, where it is an int or a float (no bool, no text) and finite.

    Raises:
        GraderFailed: it is not; begins with `where`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise GraderFailed(f"{where} is {_name(value)}, but must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise GraderFailed(f"{where} is {number}, but must be a finite number")
    return number


def _name(value: object) -> str:
    """A value in the words of JSON."""
    match value:
        case None | bool():
            return json.dumps(value)
        case str():
            return "a text"
        case list():
            return "a list"
        case dict():
            return "an object"
    return f"a value of type {type(value).__name__}"
