"""The schemas of all responses, for the OpenAPI page: every key of every response and no others.

The responses themselves are built elsewhere, as plain values; a contract test checks those of the whole API against
these schemas.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from cluster.stores.job_states import JobStatus
from serve.http.errors import ErrorBody

T = TypeVar("T")
Responses = dict[int | str, dict[str, Any]]


def answers(model: Any, *, streams: bool = False) -> Responses:
    """Returns the `responses` of a route that answers with `model`, and if `streams` also with server-sent events."""
    described: dict[str, Any] = {"model": model}
    if streams:
        event = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}
        described["content"] = {"text/event-stream": {"schema": event}}
    return {200: described, "5XX": {"model": ErrorBody}}


class ResponseBody(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Page(ResponseBody, Generic[T]):
    """A part of a list; request the next one with `after=<last_id>` while `has_more` is true."""

    object: Literal["list"]
    data: list[T]
    has_more: bool
    first_id: str | None
    last_id: str | None


class FileObject(ResponseBody):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: str | None


class DeletedFile(ResponseBody):
    id: str
    object: Literal["file"]
    deleted: bool


class JobFailure(ResponseBody):
    code: str
    message: str
    param: str | None


class Job(ResponseBody):
    """`method` is the request's, with all hyperparameters filled in and without secrets."""

    id: str
    object: Literal["fine_tuning.job"]
    created_at: int
    finished_at: int | None
    estimated_finish: int | None
    model: str
    fine_tuned_model: str | None
    organization_id: str
    status: JobStatus
    error: JobFailure | None
    hyperparameters: dict[str, Any]
    method: dict[str, Any]
    training_file: str
    validation_file: str | None
    test_file: str | None
    result_files: list[str]
    trained_tokens: int | None
    seed: int
    suffix: str | None
    metadata: dict[str, str] | None
    integrations: list[Any]


class JobEventBody(ResponseBody):
    """The `data` of a `metrics` event holds the metrics of one step."""

    id: str
    object: Literal["fine_tuning.job.event"]
    created_at: int
    level: Literal["info", "warn", "error"]
    type: Literal["message", "metrics"]
    message: str
    data: dict[str, Any] | None


class Checkpoint(ResponseBody):
    """`fine_tuned_model_checkpoint` is the name under which the checkpoint is served as a model."""

    id: str
    object: Literal["fine_tuning.job.checkpoint"]
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    step_number: int
    metrics: dict[str, float]


class ModelBody(ResponseBody):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(ResponseBody):
    object: Literal["list"]
    data: list[ModelBody]


class DeletedModel(ResponseBody):
    id: str
    object: Literal["model"]
    deleted: bool


# -- graders and tools -------------------------------------------------------------------------------------------------


class ValidGrader(ResponseBody):
    """The parsed grader, without secrets."""

    grader: dict[str, Any]


class GraderErrors(ResponseBody):
    formula_parse_error: bool
    sample_parse_error: bool
    truncated_observation_error: bool
    unresponsive_reward_error: bool
    invalid_variable_error: bool
    other_error: bool
    python_grader_server_error: bool
    python_grader_server_error_type: str | None
    python_grader_runtime_error: bool
    python_grader_runtime_error_details: str | None
    model_grader_server_error: bool
    model_grader_refusal_error: bool
    model_grader_parse_error: bool
    model_grader_server_error_details: str | None


class GraderRunMetadata(ResponseBody):
    name: str
    type: str
    execution_time: float
    scores: dict[str, Any]
    sampled_model_name: str | None
    token_usage: int | None
    errors: GraderErrors


class GraderRun(ResponseBody):
    """If one of `metadata.errors` is true, the grader failed and `reward` is not a grade."""

    reward: float
    sub_rewards: dict[str, Any]
    model_grader_token_usage_per_model: dict[str, Any]
    metadata: GraderRunMetadata


class ToolOutput(ResponseBody):
    """The result of a tool call as a model would see it."""

    type: Literal["function_call_output"]
    id: str
    call_id: str
    output: str
    error: str | None
    latency_s: float


# -- models' answers ---------------------------------------------------------------------------------------------------


class AnswerFunction(ResponseBody):
    name: str
    arguments: str


class AnswerCall(ResponseBody):
    id: str
    type: Literal["function"]
    function: AnswerFunction


class AnswerMessage(ResponseBody):
    """`reasoning` is present if the model produced any."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    annotations: list[Any] | None = None
    reasoning: str | None = None
    tool_calls: list[AnswerCall] | None = None


class Choice(ResponseBody):
    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class CachedTokens(ResponseBody):
    cached_tokens: int


class ReasoningTokens(ResponseBody):
    reasoning_tokens: int


class Usage(ResponseBody):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class BestOf(ResponseBody):
    """The scores of `n` samples (null if grading failed) and the index of the best one."""

    scores: list[float | None]
    best: int


class ChatCompletionBody(ResponseBody):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    system_fingerprint: str | None = None
    service_tier: str | None = None
    metadata: BestOf | None = None


class InputDetails(ResponseBody):
    cached_tokens: int
    cache_write_tokens: int


class ResponseUsage(ResponseBody):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class OutputText(ResponseBody):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(ResponseBody):
    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: Literal["completed", "incomplete"]
    content: list[OutputText]


class OutputCall(ResponseBody):
    type: Literal["function_call"]
    id: str
    status: Literal["completed", "incomplete"]
    call_id: str
    name: str
    arguments: str


class OutputReasoning(ResponseBody):
    """`encrypted_content` is present if the request's `include` asked for it."""

    type: Literal["reasoning"]
    id: str
    summary: list[Any]
    encrypted_content: str | None = None


class IncompleteDetails(ResponseBody):
    reason: Literal["max_output_tokens"]


class Response(ResponseBody):
    """The output, and the settings of the request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete"]
    background: Literal[False]
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage | OutputCall | OutputReasoning]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, Any]
    service_tier: Literal["default"]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage
    user: None
