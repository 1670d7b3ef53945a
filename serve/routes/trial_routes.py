"""/v1/fine_tuning/alpha: trial runs of a grader or a tool, with the same code as in training.

If grading fails, the response contains the reward 0.0 and the error in `metadata.errors`, as in OpenAI's API. Errors
that only the client can fix (an invalid grader, a private URL, a rejected token) have the status 400 instead.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from agent_rft.actors.endpoints.network.address_guard import AddressGuard
from agent_rft.actors.endpoints.network.endpoint_url_checks import find_endpoint_problem, redact_url
from agent_rft.actors.graders.grader_protocol import wire_errors
from agent_rft.actors.graders.grader_sample import make_sample
from agent_rft.actors.grading.grader_pool import GraderPool
from agent_rft.actors.runtime.actor_calls import return_errors
from agent_rft.actors.tools.dispatcher import Dispatcher
from agent_rft.cluster.records.redaction import REDACTED
from agent_rft.errors import DiscardError, EndpointRefused, InvalidJob, RftError, UserError
from agent_rft.serve.http.auth import Writer
from agent_rft.serve.http.error_responses import make_user_api_error
from agent_rft.serve.http.grader_trials import TrialFactory
from agent_rft.serve.http.schemas.grader_schemas import (
    GraderErrors,
    GraderRun,
    GraderRunMetadata,
    ToolOutput,
    ValidGrader,
)
from agent_rft.spec.config_reader import drop_nulls
from agent_rft.spec.endpoints import MAX_TRIAL_CALL_S, ToolSpec
from agent_rft.spec.graders import EndpointGrader, GraderSpec, LabelModelGrader, MultiGrader, ScoreModelGrader
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.types import Grade, ToolCall
from agent_rft.wire.api_errors import ApiError

Id = Annotated[str, Field(min_length=1, max_length=200)]
LATE = f". A trial call may take at most {MAX_TRIAL_CALL_S:.0f} s; calls in a job may take longer"


class StrictBody(BaseModel):
    """Base class of request bodies that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class ValidateRequest(StrictBody):
    """Request body with a grader to check."""

    grader: Annotated[GraderSpec, BeforeValidator(drop_nulls)]
    """Grader, as in `method.reinforcement.grader` of a job."""


class RunRequest(ValidateRequest):
    """Request body with a grader, and an answer to grade."""

    model_sample: str
    """Text of the answer. If it is JSON, graders also receive it as `sample.output_json`."""
    item: dict[str, Any] | None = None
    """Row of the dataset, which templates read as `item`."""
    trace_id: Id | None = None
    """Trace id to send to an endpoint grader; default: a new id."""


class ToolCallBody(BaseModel):
    """Request body with a tool call. Unknown fields are accepted, but have no effect."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, use_attribute_docstrings=True)

    name: Id
    """Name of the tool."""
    arguments: str | dict[str, Any] = "{}"
    """Arguments, as an object or as JSON text."""
    id: Id | None = None
    """Id of the call; default: `call_id`."""
    call_id: Id | None = None
    """Id of the call. Default: the value of `id`; if `id` is also missing, a new id."""
    trace_id: Id | None = None
    """Trace id of the rollout; default: a new id."""
    item: dict[str, Any] | None = None
    """Row of the dataset, which is sent to the tool."""


class ToolRequest(ToolCallBody):
    """Request body with a tool call and the tool's URL. Unknown fields are accepted, but have no effect."""

    server_url: Annotated[str, Field(max_length=4000)]
    """URL of the tool."""
    headers: dict[str, SecretStr] | None = None
    """HTTP headers for the tool. They are never returned or logged."""


def make_router(trials: TrialFactory) -> APIRouter:
    router = APIRouter(prefix="/fine_tuning/alpha", tags=["graders"])

    @router.post("/graders/validate")
    async def validate_grader(body: ValidateRequest, key: Writer) -> ValidGrader:
        """Check a grader without running it, and return the parsed grader."""
        await trials.check_grader(body.grader)
        return ValidGrader(grader=to_public_grader(body.grader))

    @router.post("/graders/run")
    async def run_grader(body: RunRequest, key: Writer) -> GraderRun:
        """Grade `model_sample` once with a grader."""
        return await _grade_once(body, await trials.make_grader(body.grader, key))

    @router.post("/tool/run")
    async def run_tool(body: ToolRequest, key: Writer) -> ToolOutput:
        """Call a tool once and return the result that a model would see."""
        tool = _parse_tool(body, trials.operator)
        async with trials.slot(key)():
            return await call_once(body, Dispatcher([tool], trials.operator), "server_url")

    return router


# -- graders -----------------------------------------------------------------------------------------------------------


def to_public_grader(spec: GraderSpec) -> dict[str, Any]:
    """Return a grader as the client specified it, with the API's field names and without secrets."""
    shown = spec.model_dump(mode="json", exclude_unset=True, exclude={"graders"})
    if isinstance(spec, EndpointGrader):
        shown["url"] = redact_url(spec.url)
        if "rate_limit_per_s" in shown:
            shown["rate_limit"] = shown.pop("rate_limit_per_s")
        if "headers" in shown:
            shown["headers"] = dict.fromkeys(spec.headers, REDACTED)
    if isinstance(spec, MultiGrader):
        shown["graders"] = {name: to_public_grader(part) for name, part in spec.graders.items()}
    return shown


async def _grade_once(body: RunRequest, pool: GraderPool) -> GraderRun:
    """Grade the answer in `body` once, close the pool and return the response.

    Raises:
        ApiError: Grading failed because of an error that only the client can fix.
    """
    start = time.monotonic()
    try:
        sample = make_sample(body.model_sample, (), "answer", wants_json=True)
        trace_id = body.trace_id or f"trace_{secrets.token_hex(16)}"
        outcome = await return_errors(pool.grade(sample, body.item or {}, trace_id))
    finally:
        await pool.close()
    if isinstance(outcome, UserError):
        raise _endpoint_api_error(outcome, "grader")
    return _build_run_response(body.grader, outcome, time.monotonic() - start)


def _build_run_response(spec: GraderSpec, outcome: Grade | RftError, execution_s: float) -> GraderRun:
    failed = outcome if isinstance(outcome, RftError) else None
    grade = outcome if isinstance(outcome, Grade) else Grade(0.0)
    metadata = GraderRunMetadata(
        name=spec.name or spec.type,
        type=spec.type,
        execution_time=execution_s,
        scores=dict(grade.scores),
        sampled_model_name=spec.model if isinstance(spec, (ScoreModelGrader, LabelModelGrader)) else None,
        token_usage=sum(grade.judge_tokens.values()) or None,
        errors=GraderErrors.model_validate(wire_errors(failed)),
    )
    return GraderRun(
        reward=grade.value,
        sub_rewards=metadata.scores,
        model_grader_token_usage_per_model={
            name: {"total_tokens": count} for name, count in grade.judge_tokens.items()
        },
        metadata=metadata,
    )


# -- tools -------------------------------------------------------------------------------------------------------------


def _parse_tool(body: ToolRequest, operator: OperatorConfig) -> ToolSpec:
    headers = body.headers or {}
    problem = find_endpoint_problem(body.server_url, {})
    if (
        problem is None
        and (address := AddressGuard(operator.allowed_destinations).find_address_problem(body.server_url)) is not None
    ):
        problem = f"{address.message}; the operator can {address.fix}"
    if problem is not None:
        raise ApiError(400, f"The tool cannot be called: {problem}.", param="server_url", code="invalid_endpoint")
    problem = find_endpoint_problem(body.server_url, headers)
    if problem is not None:
        raise ApiError(400, f"The tool cannot be called: {problem}.", param="headers", code="invalid_endpoint")
    return ToolSpec(name=body.name, server_url=body.server_url, headers=headers)


async def call_once(body: ToolCallBody, dispatcher: Dispatcher, param: str) -> ToolOutput:
    """Make one tool call, close the dispatcher and return the response.

    `param` is the name of the request field that errors refer to.

    Raises:
        ApiError: The call failed or was refused.
    """
    call_id = body.call_id or body.id or f"call_{secrets.token_hex(12)}"
    arguments = body.arguments if isinstance(body.arguments, str) else json.dumps(body.arguments)
    trace_id = body.trace_id or f"trace_{secrets.token_hex(16)}"
    try:
        call = ToolCall(call_id, body.name, arguments)
        (result,) = await dispatcher.call_turn(trace_id, body.item or {}, [call])
    except UserError as error:
        raise _endpoint_api_error(error, param) from None
    except DiscardError as error:
        late = LATE if error.details.get("kind") == "deadline" else ""
        raise ApiError(424, error.public_message + late, param=param, code="tool_failed") from None
    finally:
        await dispatcher.close()
    return ToolOutput(
        id=body.id or call_id,
        call_id=call_id,
        output=result.output,
        error=result.error,
        latency_s=result.latency_s,
    )


def _endpoint_api_error(error: UserError, param: str) -> ApiError:
    code = "endpoint_refused" if isinstance(error, EndpointRefused) else "invalid_request"
    if isinstance(error, InvalidJob):
        return make_user_api_error(error, param)
    return ApiError(400, error.public_message, param=param, code=code)
