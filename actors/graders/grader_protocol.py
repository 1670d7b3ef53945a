"""Grader protocol and helpers for grades. A grader that fails raises an error instead of returning 0."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from agent_rft.actors.endpoints.http_response import to_one_line, truncate
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
"""Names of the boolean fields of `metadata.errors` in the wire contract. If a GraderFailed has `details["code"]`, it is
one of these names."""
MAX_REASON_CHARS = 1_000
"""Maximum length of the reason for a grade, which is recorded with each rollout."""
UNGATED = "ungated"
"""Key in `scores` for the grade before guards are applied. No part of a grader may have this name."""
MAX_INLINE_CHARS = 4_000
"""Maximum length of strings that are processed on the event loop instead of in a thread."""


class Grader(Protocol):
    """Interface of all graders. `close` releases a grader's resources, such as connections."""

    async def grade(self, sample: dict[str, Any], item: dict[str, Any], trace_id: str) -> Grade:
        """Return the grade of `sample` (in the format of the wire contract) for the dataset row `item`.

        Raises:
            GraderFailed: The grader failed.
            EndpointRefused: An endpoint that the grader calls refused the key.
        """

    async def close(self) -> None: ...


class StringWorker:
    """Runs string computations without blocking the event loop: long strings are processed in a thread.

    One thread is enough, because of Python's global interpreter lock.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grader-texts")

    async def run(self, work: Callable[[], T], num_chars: int) -> T:
        if num_chars <= MAX_INLINE_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def check_finite_number(value: object, where: str) -> float:
    """Return `value`, an int or float, as a finite float. A bool or a string is not a number.

    Raises:
        GraderFailed: The value is not a finite number; the message starts with `where`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise GraderFailed(f"{where} is {_describe(value)}, but must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise GraderFailed(f"{where} is {number}, but must be a finite number")
    return number


def check_train(value: object, where: str) -> bool:
    """Return `value`, a grader's `train`, as a bool.

    Raises:
        GraderFailed: The value is not a bool; the message starts with `where`.
    """
    if not isinstance(value, bool):
        raise GraderFailed(f"{where} is {_describe(value)}, but must be true or false")
    return value


def truncate_reason(text: str) -> str:
    """Return a grader's reason on one line, truncated to MAX_REASON_CHARS."""
    return truncate(to_one_line(text), MAX_REASON_CHARS)


def range_problem(value: float, score_range: tuple[float, float] | None) -> str | None:
    """Return the problem with a grade outside `score_range`; None if the grade is allowed.

    The returned text completes a sentence, for example "is 7, outside the grader's range of 0 to 1".
    """
    if score_range is None or score_range[0] <= value <= score_range[1]:
        return None
    return f"is {value:g}, outside the grader's range of {score_range[0]:g} to {score_range[1]:g}"


def wire_errors(error: RftError | None) -> dict[str, bool | str | None]:
    """Return `metadata.errors` of the wire contract. `error` is None if the grader returned a grade."""
    errors: dict[str, bool | str | None] = dict.fromkeys(ERROR_NAMES, False)
    details = {
        "python_grader_server_error_type": "python_grader_server_error",
        "python_grader_runtime_error_details": "python_grader_runtime_error",
        "model_grader_server_error_details": "model_grader_server_error",
    }
    name = None if error is None else error_name(error)
    if name is not None:
        errors[name] = True
    for key, cause in details.items():
        errors[key] = error.details.get(key, error.message) if error is not None and name == cause else None
    return errors


def error_name(error: RftError) -> str:
    """Return the name in ERROR_NAMES for a grader's error."""
    code = error.details.get("code")
    if code in ERROR_NAMES:
        return str(code)
    return "unresponsive_reward_error" if error.details.get("kind") == "deadline" else "other_error"


def sum_judge_tokens(grades: Iterable[Grade]) -> dict[str, int]:
    """Return the number of tokens that judges used for several grades, by model."""
    total: Counter[str] = Counter()
    for grade in grades:
        total.update(grade.judge_tokens)
    return dict(total)


def _describe(value: object) -> str:
    """Describe a value of the wrong type, in JSON's terms."""
    match value:
        case None | bool():
            return json.dumps(value)
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
    return f"a value of type {type(value).__name__}"
