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
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Page(ResponseBody, Generic[T]):
    """A part of a list; request the next one with `after=<last_id>` while `has_more` is true."""

    object: Literal["list"]
    data: list[T]
    """The entries."""
    has_more: bool
    """Whether there are more after the last one."""
    first_id: str | None
    """Id of the first entry; null if there is none."""
    last_id: str | None
    """Id of the last entry, for `after`; null if there is none."""


class FileObject(ResponseBody):
    id: str
    """`file-...`."""
    object: Literal["file"]
    bytes: int
    """Size."""
    created_at: int
    """Unix seconds."""
    expires_at: int | None
    """Unix seconds; null: never."""
    filename: str
    """The name that it was uploaded with."""
    purpose: str
    """What it was uploaded for; `fine-tune-results` for result files of jobs."""
    status: Literal["processed"]
    """Files are usable at once."""
    status_details: str | None
    """Always null."""


class DeletedFile(ResponseBody):
    id: str
    object: Literal["file"]
    deleted: bool


class JobFailure(ResponseBody):
    code: str
    """A problem code."""
    message: str
    """What went wrong and what to do."""
    param: str | None
    """The field of the request that is wrong, if it is one."""


class Job(ResponseBody):
    """`method` is the request's, with all hyperparameters filled in and without secrets."""

    id: str
    """`ftjob-...`."""
    object: Literal["fine_tuning.job"]
    created_at: int
    """Unix seconds."""
    finished_at: int | None
    """Unix seconds; null while the job has not ended."""
    estimated_finish: int | None
    """Unix seconds, from the time of the last steps; null if unknown."""
    model: str
    """The start model."""
    fine_tuned_model: str | None
    """Id of the tuned model; null until there is one."""
    organization_id: str
    """`local`: a server has one organization."""
    status: JobStatus
    """`validating_files`, then `queued`, `running`, and at last `succeeded`, `failed` or `cancelled`; or `paused`."""
    error: JobFailure | None
    """Why it failed; null if it did not."""
    hyperparameters: dict[str, Any]
    """Those of the method, for clients of the older form."""
    method: dict[str, Any]
    """The method of the request, with all hyperparameters filled in and without secrets."""
    training_file: str
    """Id of the training file."""
    validation_file: str | None
    """Id of the validation file, or null."""
    test_file: str | None
    """Id of the test file, or null."""
    result_files: list[str]
    """Ids of files with the metrics of all steps."""
    trained_tokens: int | None
    """Tokens in the loss so far; null before the first checkpoint."""
    seed: int
    """The seed in use."""
    suffix: str | None
    """Part of the tuned model's name."""
    metadata: dict[str, str] | None
    """The pairs of the request."""
    integrations: list[Any]
    """Always empty."""


class JobEventBody(ResponseBody):
    """The `data` of a `metrics` event holds the metrics of one step."""

    id: str
    """`ftevent-...`."""
    object: Literal["fine_tuning.job.event"]
    created_at: int
    """Unix seconds."""
    level: Literal["info", "warn", "error"]
    """How serious it is."""
    type: Literal["message", "metrics"]
    """`metrics` for the end of a step, else `message`."""
    message: str
    """A sentence for people."""
    data: dict[str, Any] | None
    """The metrics of a step, or `kind`, `version`, `step` and the event's fields. Null for events of the server."""


class Checkpoint(ResponseBody):
    """`fine_tuned_model_checkpoint` is the name under which the checkpoint is served as a model."""

    id: str
    """`ftckpt-...`."""
    object: Literal["fine_tuning.job.checkpoint"]
    created_at: int
    """Unix seconds."""
    fine_tuned_model_checkpoint: str
    """The id under which the checkpoint is served as a model."""
    fine_tuning_job_id: str
    """Id of its job."""
    step_number: int
    """The step after which it was written."""
    metrics: dict[str, float]
    """Metrics of that step."""


class ModelBody(ResponseBody):
    id: str
    """The name for `model` in requests."""
    object: Literal["model"]
    created: int
    """Unix seconds."""
    owned_by: str
    """Who made it."""


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
    """The grade."""
    sub_rewards: dict[str, Any]
    """Scores of the parts of a multi grader."""
    model_grader_token_usage_per_model: dict[str, Any]
    """Tokens that judges took, by model."""
    metadata: GraderRunMetadata
    """The grader's name and type, its time in seconds, and which error occurred."""


class ToolOutput(ResponseBody):
    """The result of a tool call as a model would see it."""

    type: Literal["function_call_output"]
    id: str
    """The request's `id`, or a new one."""
    call_id: str
    """Id of the call."""
    output: str
    """The text that the model would see."""
    error: str | None
    """Null, or why the call is invalid: `unknown_tool`, `tool_error`."""
    latency_s: float
    """Seconds of the attempt that was answered."""


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
