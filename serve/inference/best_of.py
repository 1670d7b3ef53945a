"""Best of n: n samples are graded by the code that training uses; the best one is returned, with all scores.

A sample whose grading failed has the score null and never wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agent_rft.actors.graders.sample import sample_of
from agent_rft.actors.grading.pool import GraderPool
from agent_rft.actors.runtime.calls import outcome_of
from agent_rft.errors import EndpointRefused, InvalidJob, RftError, first_error
from agent_rft.serve.http.errors import of_user_error
from agent_rft.serve.http.trials import Trials
from agent_rft.serve.stores.keys import ApiKey
from agent_rft.spec.graders import GraderSpec
from agent_rft.types import Grade, ToolCall, Turn
from agent_rft.wire.errors import ApiError

MAX_SAMPLES = 16
"""Samples graded at a time, so that a request with many does not fill the queue for slots by itself."""
_GRADER: TypeAdapter[Any] = TypeAdapter(GraderSpec)


async def read_grader(raw: Mapping[str, Any], trials: Trials, key: ApiKey) -> GraderPool:
    """Returns the grader of a request, within what the operator allows.

    Raises:
        ApiError: the grader is invalid or not allowed.
    """
    try:
        spec = _GRADER.validate_python(raw)
        grader = await trials.grader(spec, key)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(["grader", *(str(part) for part in first["loc"][1:])])
        raise ApiError(400, f"{place}: {first['msg']}", param=place, code="invalid_grader") from None
    except InvalidJob as error:
        raise of_user_error(error, "grader") from None
    return grader


async def best_of(
    completion: Mapping[str, Any], grader: GraderPool, item: dict[str, Any] | None, wants_json: bool
) -> dict[str, Any]:
    """Grades all choices, closes the grader and returns the completion with its best choice only.

    Its `metadata` holds `scores`, one for each choice, and `best`, the index of the best choice.

    Raises:
        ApiError: no choice could be graded.
        NoSlot: a grader got no slot.
    """
    choices = completion["choices"]
    room = asyncio.Semaphore(MAX_SAMPLES)

    async def graded_choice(i: int, choice: Mapping[str, Any]) -> Grade | RftError:
        async with room:
            sample = _sample(choice, wants_json)
            return await outcome_of(grader.grade(sample, item or {}, f"trace_{completion['id']}_{i}"))

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(graded_choice(i, choice)) for i, choice in enumerate(choices)]
    except ExceptionGroup as failed:
        raise first_error(failed) from None
    finally:
        await grader.close()
    outcomes = [task.result() for task in tasks]
    scores = [outcome.value if isinstance(outcome, Grade) else None for outcome in outcomes]
    graded = [i for i, score in enumerate(scores) if score is not None]
    if not graded:
        raise _no_grade([outcome for outcome in outcomes if isinstance(outcome, RftError)])
    best = max(graded, key=lambda i: scores[i] or 0.0)
    metadata = {"scores": scores, "best": best}
    return {**completion, "choices": [{**choices[best], "index": 0}], "metadata": metadata}


def _sample(choice: Mapping[str, Any], wants_json: bool) -> dict[str, Any]:
    message = choice["message"]
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    )
    text = message["content"] or ""
    return sample_of(text, (Turn(0, 0, text, calls),), choice["finish_reason"], wants_json)


def _no_grade(errors: Sequence[RftError]) -> ApiError:
    message = f"None of the samples could be graded: {errors[0].message}"
    if isinstance(errors[0], EndpointRefused):
        return ApiError(400, message, param="grader", code="grader_refused")
    return ApiError(502, message, param="grader", code="grader_failed", type="server_error")
