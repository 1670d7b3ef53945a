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
    """Whether there are entries after `last_id`."""
    first_id: str | None
    """Id of the first entry of `data`; null if it is empty."""
    last_id: str | None
    """Id of the last entry of `data`, for `after` of the next request; null if it is empty."""


class FileObject(ResponseBody):
    id: str
    """`file-...`."""
    object: Literal["file"]
    bytes: int
    """Size of the file."""
    created_at: int
    """Unix time in seconds."""
    expires_at: int | None
    """Unix time in seconds at which the file is deleted; null: never."""
    filename: str
    """The name that it was uploaded with."""
    purpose: str
    """What it was uploaded for; `fine-tune-results` for result files of jobs."""
    status: Literal["processed"]
    """Files are checked when a job reads them, so every stored file is processed."""
    status_details: str | None
    """Always null."""


class DeletedFile(ResponseBody):
    id: str
    object: Literal["file"]
    deleted: bool


class JobFailure(ResponseBody):
    code: str
    """A problem code of the manual, such as invalid_training_file."""
    message: str
    """What went wrong, where, and what to do."""
    param: str | None
    """The field of the request that is wrong, if it is one."""


class Job(ResponseBody):
    """A fine-tuning job."""

    id: str
    """`ftjob-...`."""
    object: Literal["fine_tuning.job"]
    created_at: int
    """Unix time in seconds."""
    finished_at: int | None
    """Unix time in seconds at which the job succeeded, failed or was cancelled; null before."""
    estimated_finish: int | None
    """Unix time in seconds; null unless the job is running and has done enough steps for an estimate."""
    model: str
    """Id of the start model, as in the request."""
    fine_tuned_model: str | None
    """Id of the tuned model, for chat and responses; null until the job has succeeded."""
    organization_id: str
    """`local`: a server has one organization."""
    status: JobStatus
    """`validating_files`, then `queued`, `running`, and at last `succeeded`, `failed` or `cancelled`; or `paused`."""
    error: JobFailure | None
    """Why the job failed; null otherwise."""
    hyperparameters: dict[str, Any]
    """The same as in `method`; clients of older versions of OpenAI's API read them here."""
    method: dict[str, Any]
    """The request's, with all hyperparameters filled in and without secrets."""
    model_options: dict[str, Any] | None
    """Those of the request, or null."""
    training_file: str
    """Id of the training file."""
    validation_file: str | None
    """Id of the validation file, or null."""
    test_file: str | None
    """Id of the test file, or null."""
    result_files: list[str]
    """Ids of a CSV file with the metrics of each step."""
    trained_tokens: int | None
    """Tokens that were trained so far; null before the first step."""
    seed: int
    """Seed of the order of rows and of sampling: the request's, or a random one."""
    suffix: str | None
    """Part of the tuned model's name."""
    metadata: dict[str, str] | None
    """The pairs of the request."""
    integrations: list[Any]
    """Always empty."""


class JobEventBody(ResponseBody):
    """What happened in a job."""

    id: str
    """`ftevent-...`."""
    object: Literal["fine_tuning.job.event"]
    created_at: int
    """Unix time in seconds."""
    level: Literal["info", "warn", "error"]
    """How serious it is."""
    type: Literal["message", "metrics"]
    """metrics: the numbers of one step, in `data`; message: anything else."""
    message: str
    """A sentence for people."""
    data: dict[str, Any] | None
    """The metrics of a step, or details of a message; null: none."""


class JobOutput(ResponseBody):
    """The end of what one process of a job wrote."""

    process: Literal["validation", "driver"]
    """Which process it was."""
    attempt: int
    """The number of the driver, from 1; 0 for the validation."""
    written_at: int
    """When it last wrote, as Unix time in seconds."""
    text: str
    """The end of its output, without secrets."""


class JobLog(ResponseBody):
    """What only admins see of a job: an extension of OpenAI's API."""

    object: Literal["fine_tuning.job.log"]
    job_id: str
    """Id of the job."""
    error: str | None
    """The error of the job with what it quotes, which the job itself does not show; null: it has none."""
    outputs: list[JobOutput]
    """Its processes, oldest first. Outputs are kept for 30 days, those of the last ten drivers."""


class Checkpoint(ResponseBody):
    """A saved state of a job's model."""

    id: str
    """`ftckpt-...`."""
    object: Literal["fine_tuning.job.checkpoint"]
    created_at: int
    """Unix time in seconds."""
    fine_tuned_model_checkpoint: str
    """Id under which the checkpoint is served as a model."""
    fine_tuning_job_id: str
    """Id of its job."""
    step_number: int
    """The training step after which it was saved."""
    metrics: dict[str, float]
    """Metrics of that step and of the validation after it."""


class ModelBody(ResponseBody):
    id: str
    """The name for `model` in requests."""
    object: Literal["model"]
    created: int
    """Unix time in seconds; 0: unknown."""
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
    """`calculate_output` cannot be computed."""
    sample_parse_error: bool
    """Never true; OpenAI's clients expect the key."""
    truncated_observation_error: bool
    """Never true; OpenAI's clients expect the key."""
    unresponsive_reward_error: bool
    """The grader's endpoint did not answer by its deadline."""
    invalid_variable_error: bool
    """A path of a template does not exist in the row or the sample."""
    other_error: bool
    """A failure that none of the other keys names."""
    python_grader_server_error: bool
    """The sandbox failed: its worker was lost, or the grade took too long."""
    python_grader_server_error_type: str | None
    python_grader_runtime_error: bool
    """The code of a python grader raised, or returned no finite number."""
    python_grader_runtime_error_details: str | None
    model_grader_server_error: bool
    """The judge's endpoint failed."""
    model_grader_refusal_error: bool
    """The judge refused to grade."""
    model_grader_parse_error: bool
    """The judge's answers did not have the requested form."""
    model_grader_server_error_details: str | None


class GraderRunMetadata(ResponseBody):
    name: str
    """The grader's name, else its type."""
    type: str
    execution_time: float
    """Seconds."""
    scores: dict[str, Any]
    """For a multi grader the grade of each part by name; otherwise empty."""
    sampled_model_name: str | None
    """The judge's name; null if there is none."""
    token_usage: int | None
    """Tokens that judges used; null: none."""
    errors: GraderErrors


class GraderRun(ResponseBody):
    """If one of `metadata.errors` is true, the grader failed and `reward` is not a grade."""

    reward: float
    """The grade; 0 if the grader failed."""
    sub_rewards: dict[str, Any]
    """For a multi grader the grade of each part by name; otherwise empty."""
    model_grader_token_usage_per_model: dict[str, Any]
    """Tokens that each judge used, by name."""
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
    """The text that a model would see, also of an error."""
    error: str | None
    """The kind of the error that the model would see; null: none."""
    latency_s: float
    """Seconds from the request to the answer, without waits."""


# -- models' answers ---------------------------------------------------------------------------------------------------


class AnswerFunction(ResponseBody):
    name: str
    arguments: str
    """A JSON object as text, written by the model: it may be invalid."""


class AnswerCall(ResponseBody):
    id: str
    type: Literal["function"]
    function: AnswerFunction


class AnswerMessage(ResponseBody):
    """The answer of a model: text, calls or both."""

    role: Literal["assistant"]
    content: str | None
    """The answer; null if there are only calls."""
    refusal: str | None
    annotations: list[Any] | None = None
    reasoning: str | None = None
    """The model's thoughts; left out if there are none."""
    tool_calls: list[AnswerCall] | None = None


class Choice(ResponseBody):
    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    """stop: the model has ended its answer; length: a limit of tokens was reached; tool_calls: it waits for the results
    of `tool_calls`."""


class CachedTokens(ResponseBody):
    cached_tokens: int
    """Tokens of the prompt that the engine had computed before."""


class ReasoningTokens(ResponseBody):
    reasoning_tokens: int
    """Those of `completion_tokens` or `output_tokens` that are thoughts."""


class Usage(ResponseBody):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class BestOf(ResponseBody):
    """How the answer was chosen."""

    scores: list[float | None]
    """The grade of each sample; null: its grading failed."""
    best: int
    """Index in `scores` of the sample that is returned."""


class ChatCompletionBody(ResponseBody):
    id: str
    object: Literal["chat.completion"]
    created: int
    """Unix time in seconds."""
    model: str
    choices: list[Choice]
    usage: Usage
    system_fingerprint: str | None = None
    service_tier: str | None = None
    metadata: BestOf | None = None
    """Present if the request has a `grader`."""


class InputDetails(ResponseBody):
    cached_tokens: int
    """Tokens of the input that the engine had computed before."""
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
    """To be repeated in the `function_call_output` with the result."""
    name: str
    arguments: str
    """A JSON object as text, written by the model: it may be invalid."""


class OutputReasoning(ResponseBody):
    """The thoughts before an answer."""

    type: Literal["reasoning"]
    id: str
    summary: list[Any]
    """Always empty."""
    encrypted_content: str | None = None
    """The thoughts, sealed for this server; present if `include` asked for it. Send the item back in the next turn."""


class IncompleteDetails(ResponseBody):
    reason: Literal["max_output_tokens"]


class Response(ResponseBody):
    """The output, and the settings of the request."""

    id: str
    object: Literal["response"]
    created_at: int
    """Unix time in seconds."""
    completed_at: int | None
    """Unix time in seconds; null if the response is incomplete."""
    status: Literal["completed", "incomplete"]
    """incomplete: a limit of tokens was reached."""
    background: Literal[False]
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage | OutputCall | OutputReasoning]
    """Reasoning, then a message or calls, in this order."""
    parallel_tool_calls: bool
    previous_response_id: None
    """Always null: responses are not stored."""
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
