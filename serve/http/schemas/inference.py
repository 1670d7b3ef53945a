"""Models' answers: chat completions and responses."""

from __future__ import annotations

from typing import Any, Literal

from serve.http.schemas.base import ResponseBody


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
