"""Best-of-n sampling: n samples are graded as in training, and the best one is returned with all scores.

A sample that could not be graded has the score null and is never chosen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agent_rft.actors.graders.grader_sample import make_sample
from agent_rft.actors.grading.grader_pool import GraderPool
from agent_rft.actors.runtime.actor_calls import return_errors
from agent_rft.errors import EndpointRefused, InvalidJob, RftError, first_error
from agent_rft.serve.http.error_responses import make_user_api_error
from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.stores.key_store import ApiKey
from agent_rft.spec.graders import GraderSpec
from agent_rft.types import Grade, ToolCall, Turn
from agent_rft.wire.api_errors import ApiError

MAX_SAMPLES = 16
"""Maximum number of samples that one request grades concurrently."""
_GRADER: TypeAdapter[Any] = TypeAdapter(GraderSpec)


async def read_grader(raw: Mapping[str, Any], trials: TrialFactory, key: ApiKey) -> GraderPool:
    """Return the grader that a request specifies as JSON in `raw`, within the operator's limits.

    Raises:
        ApiError: The grader is invalid, or the operator does not allow it.
    """
    try:
        spec = _GRADER.validate_python(raw)
        grader = await trials.make_grader(spec, key)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(["grader", *(str(part) for part in first["loc"][1:])])
        raise ApiError(400, f"{place}: {first['msg']}", param=place, code="invalid_grader") from None
    except InvalidJob as error:
        raise make_user_api_error(error, "grader") from None
    return grader


async def select_best_sample(
    completion: Mapping[str, Any], grader: GraderPool, item: dict[str, Any] | None, wants_json: bool
) -> dict[str, Any]:
    """Grade all choices, close the grader, and return the completion with only the best choice.

    The completion's `metadata` contains `scores`, one per choice, and `best`, the index of the best choice.

    Raises:
        ApiError: No choice could be graded.
        NoFreeSlot: A grader did not get a slot in time.
    """
    choices = completion["choices"]
    limit = asyncio.Semaphore(MAX_SAMPLES)

    async def grade_choice(i: int, choice: Mapping[str, Any]) -> Grade | RftError:
        async with limit:
            sample = _build_sample(choice, wants_json)
            return await return_errors(grader.grade(sample, item or {}, f"trace_{completion['id']}_{i}"))

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(grade_choice(i, choice)) for i, choice in enumerate(choices)]
    except ExceptionGroup as failed:
        raise first_error(failed) from None
    finally:
        await grader.close()
    outcomes = [task.result() for task in tasks]
    scores = [outcome.value if isinstance(outcome, Grade) else None for outcome in outcomes]
    graded = [i for i, score in enumerate(scores) if score is not None]
    if not graded:
        raise _no_grade_error([outcome for outcome in outcomes if isinstance(outcome, RftError)])
    best = max(graded, key=lambda i: scores[i] or 0.0)
    metadata = {"scores": scores, "best": best}
    return {**completion, "choices": [{**choices[best], "index": 0}], "metadata": metadata}


def _build_sample(choice: Mapping[str, Any], wants_json: bool) -> dict[str, Any]:
    message = choice["message"]
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    )
    text = message["content"] or ""
    return make_sample(text, (Turn(0, 0, text, calls),), choice["finish_reason"], wants_json)


def _no_grade_error(errors: Sequence[RftError]) -> ApiError:
    message = f"No sample could be graded: {errors[0].message}"
    if isinstance(errors[0], EndpointRefused):
        return ApiError(400, message, param="grader", code="grader_refused")
    return ApiError(502, message, param="grader", code="grader_failed", type="server_error")
