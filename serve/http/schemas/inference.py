"""Models' answers: chat completions and responses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from agent_rft.serve.http.schemas.base import ResponseBody


class ModelOutput(ResponseBody):
    """A part of a model's answer. Its routes leave out unset fields, so a field with a default may be missing."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)


class AnswerFunction(ModelOutput):
    name: str
    arguments: str
    """A JSON object as text, written by the model: it may be invalid."""


class AnswerCall(ModelOutput):
    id: str
    type: Literal["function"]
    function: AnswerFunction


class AnswerMessage(ModelOutput):
    """The answer of a model: text, calls or both."""

    role: Literal["assistant"]
    content: str | None
    """The answer; null if there are only calls."""
    refusal: str | None
    annotations: list[Any] | None = None
    reasoning: str | None = None
    """The model's thoughts; left out if there are none."""
    tool_calls: list[AnswerCall] | None = None


class Choice(ModelOutput):
    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    """stop: the model has ended its answer; length: a limit of tokens was reached; tool_calls: it waits for the results
    of `tool_calls`."""


class CachedTokens(ModelOutput):
    cached_tokens: int
    """Tokens of the prompt that the engine had computed before."""


class ReasoningTokens(ModelOutput):
    reasoning_tokens: int
    """Those of `completion_tokens` or `output_tokens` that are thoughts."""


class Usage(ModelOutput):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class BestOf(ModelOutput):
    """How the answer was chosen."""

    scores: list[float | None]
    """The grade of each sample; null: its grading failed."""
    best: int
    """Index in `scores` of the sample that is returned."""


class ChatCompletionBody(ModelOutput):
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


class InputDetails(ModelOutput):
    cached_tokens: int
    """Tokens of the input that the engine had computed before."""
    cache_write_tokens: int


class ResponseUsage(ModelOutput):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class OutputText(ModelOutput):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(ModelOutput):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Literal["completed", "incomplete"]
    content: list[OutputText]


class OutputCall(ModelOutput):
    id: str
    type: Literal["function_call"]
    status: Literal["completed", "incomplete"]
    call_id: str
    """To be repeated in the `function_call_output` with the result."""
    name: str
    arguments: str
    """A JSON object as text, written by the model: it may be invalid."""


class OutputReasoning(ModelOutput):
    """The thoughts before an answer."""

    id: str
    type: Literal["reasoning"]
    summary: list[Any]
    """Always empty."""
    encrypted_content: str | None = None
    """The thoughts, sealed for this server; present if `include` asked for it. Send the item back in the next turn."""


class IncompleteDetails(ModelOutput):
    reason: Literal["max_output_tokens"]


class Response(ModelOutput):
    """The output, and the settings of the request."""

    id: str
    object: Literal["response"]
    created_at: int
    """Unix time in seconds."""
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
    completed_at: int | None
    """Unix time in seconds; null if the response is incomplete."""
