"""Response models of chat completions and responses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from agent_rft.serve.http.schemas.base import ResponseBody


class ModelOutput(ResponseBody):
    """Base class of the parts of a model's answer. Fields that are not set are omitted."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)


class AnswerFunction(ModelOutput):
    """Name and arguments of a called function."""

    name: str
    arguments: str
    """Arguments as JSON text. The model wrote it, so it may be invalid."""


class AnswerCall(ModelOutput):
    """A tool call."""

    id: str
    type: Literal["function"]
    function: AnswerFunction


class AnswerMessage(ModelOutput):
    """Message of a model: text, tool calls or both."""

    role: Literal["assistant"]
    content: str | None
    """Text of the message; null if it has only tool calls."""
    refusal: str | None
    annotations: list[Any] | None = None
    reasoning: str | None = None
    """The model's reasoning; omitted if it is empty."""
    tool_calls: list[AnswerCall] | None = None


class Choice(ModelOutput):
    """One of the `n` messages that the model sampled for a request."""

    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    """`stop` if the model ended its message, `length` if a token limit was reached, or `tool_calls` if the model waits
    for tool results."""


class CachedTokens(ModelOutput):
    """Details of the prompt token count."""

    cached_tokens: int
    """Prompt tokens from the engine's prefix cache."""


class ReasoningTokens(ModelOutput):
    """Details of the sampled token count."""

    reasoning_tokens: int
    """Sampled tokens that are reasoning."""


class TokenUsage(ModelOutput):
    """Token counts of a chat completion."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class BestOf(ModelOutput):
    """Scores of all samples in best-of-n sampling."""

    scores: list[float | None]
    """Grade of each sample; null if its grading failed."""
    best: int
    """Index in `scores` of the returned sample."""


class ChatCompletionBody(ModelOutput):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    """Unix time in seconds."""
    model: str
    choices: list[Choice]
    usage: TokenUsage
    system_fingerprint: str | None = None
    service_tier: str | None = None
    metadata: BestOf | None = None
    """Present if the request has a `grader`."""


class InputDetails(ModelOutput):
    """Details of the input token count."""

    cached_tokens: int
    """Input tokens from the engine's prefix cache."""
    cache_write_tokens: int


class ResponseUsage(ModelOutput):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class OutputText(ModelOutput):
    """Text in a message of the model."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(ModelOutput):
    """A message of the model."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Literal["completed", "incomplete"]
    content: list[OutputText]


class OutputCall(ModelOutput):
    """A function call of the model."""

    id: str
    type: Literal["function_call"]
    status: Literal["completed", "incomplete"]
    call_id: str
    """Id of the call. Repeat it in the `function_call_output` item that contains the result."""
    name: str
    arguments: str
    """Arguments as JSON text. The model wrote it, so it may be invalid."""


class OutputReasoning(ModelOutput):
    """The model's reasoning before its message or calls."""

    id: str
    type: Literal["reasoning"]
    summary: list[Any]
    """Always empty."""
    encrypted_content: str | None = None
    """Encrypted reasoning; present if `include` requests it. Send the item back to this server in the next turn."""


class IncompleteDetails(ModelOutput):
    """Reason why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class Response(ModelOutput):
    """A model's response, with the settings of the request."""

    id: str
    object: Literal["response"]
    created_at: int
    """Unix time in seconds."""
    status: Literal["completed", "incomplete"]
    """`incomplete` if a token limit was reached."""
    background: Literal[False]
    error: None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage | OutputCall | OutputReasoning]
    """Reasoning first, then a message or function calls."""
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
