"""A grade is a finite number that a grader returned; anything else is a failure, never 0."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from agent_rft.actors.endpoints.answer import cut, one_line
from agent_rft.errors import GraderFailed, RftError
from agent_rft.types import Grade

T = TypeVar("T")

ERROR_NAMES = (
    "formula_parse_error",
    "sample_parse_error",
    "truncated_observation_error",
    "unresponsive_reward_error",
    "invalid_variable_error",
    "other_error",
    "python_grader_server_error",
    "python_grader_runtime_error",
    "model_grader_server_error",
    "model_grader_refusal_error",
    "model_grader_parse_error",
)
"""The booleans of `metadata.errors` in the wire contract. A GraderFailed has one of them as its
`details["code"]`, unless an endpoint failed."""
REASON_CHARS = 1_000
"""Kept of one grader's reason: each rollout's is in the record."""
UNGATED = "ungated"
"""The name among `scores` of the grade without guards; no part of a grader has it."""
SHORT_CHARS = 4_000
"""Work on shorter texts takes a few milliseconds, too little for a thread to pay off."""


class Grader(Protocol):
    """Grades samples; `close` releases its resources, such as connections."""

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        """The grade of `sample` (the wire contract) for the dataset row `item`.

        Raises:
            GraderFailed: the grader failed.
            EndpointRefused: an endpoint refuses its key.
        """

    async def close(self) -> None: ...


class TextWork:
    """Runs work on texts: inline for short ones, in a thread for long ones, so that the event loop is not blocked.

    One thread is enough, because of Python's global interpreter lock.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grader-texts")

    async def run(self, work: Callable[[], T], num_chars: int) -> T:
        if num_chars <= SHORT_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def finite_number(value: object, where: str) -> float:
    """`value` as a float; it must be a finite int or float, not a bool or a string.

    Raises:
        GraderFailed: it is not; the message starts with `where`.
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


def kept_reason(text: str) -> str:
    """A grader's reason as rollouts record it: on one line, and cut."""
    return cut(one_line(text), REASON_CHARS)


def outside(value: float, allowed: tuple[float, float] | None) -> str | None:
    """Why a grade is not within the range that the job allows; None if it is."""
    if allowed is None or allowed[0] <= value <= allowed[1]:
        return None
    return f"is {value:g}, not within the grader's range, {allowed[0]:g} to {allowed[1]:g}"


def wire_errors(error: RftError | None) -> dict[str, bool | str | None]:
    """`metadata.errors` of the wire contract, for a grade (None) or for the error that was raised instead."""
    errors: dict[str, bool | str | None] = dict.fromkeys(ERROR_NAMES, False)
    details = {
        "python_grader_server_error_type": "python_grader_server_error",
        "python_grader_runtime_error_details": "python_grader_runtime_error",
        "model_grader_server_error_details": "model_grader_server_error",
    }
    name = None if error is None else error_name(error)
    if name is not None:
        errors[name] = True
    for key, of in details.items():
        errors[key] = error.details.get(key, error.message) if error is not None and name == of else None
    return errors


def error_name(error: RftError) -> str:
    """The entry of ERROR_NAMES that an error belongs to."""
    code = error.details.get("code")
    if code in ERROR_NAMES:
        return str(code)
    return "unresponsive_reward_error" if error.details.get("kind") == "deadline" else "other_error"


def total_tokens(grades: Iterable[Grade]) -> dict[str, int]:
    """The judges' tokens of several grades, by model."""
    total: Counter[str] = Counter()
    for grade in grades:
        total.update(grade.judge_tokens)
    return dict(total)


def _name(value: object) -> str:
    """What kind of value this is, in JSON's terms."""
    match value:
        case None | bool():
            return json.dumps(value)
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
    return f"a value of type {type(value).__name__}"
