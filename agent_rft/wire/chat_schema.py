"""Schema of chat completion requests, which are validated before an engine is called.

`request_keys` lists the unsupported keys that are rejected. Other unknown keys are ignored. A key with the value `null`
is treated like an absent key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from agent_rft.chat.message_schema import AssistantMessage, ChatMessage, PlainMessage, RequestPart, ToolMessage
from agent_rft.spec.schemas.json_schema import find_schema_problem
from agent_rft.wire.api_errors import MAX_PARAM_CHARS, truncate
from agent_rft.wire.request_keys import WEB_SEARCH_KEY, refuse_keys, to_key_labels
from agent_rft.wire.tool_schema import (
    ChatTool,
    IgnoredTool,
    NamedTool,
    ToolDefinition,
    check_grammars,
    check_tool_choice,
    check_unique_names,
    raise_schema_problem,
)

MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_CHOICES = 128
IGNORED_KEYS = {
    *("user", "store", "metadata", "service_tier", "safety_identifier", "verbosity", "modalities"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
}
SERVER_KEYS = IGNORED_KEYS | {"grader", "item", "max_tokens", "stream_options"}
REQUIRED = frozenset({"model", "messages", "input"})
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def _check_grammar_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return raise_schema_problem(schema, find_schema_problem(schema, grammar=True))


GrammarSchema = Annotated[dict[str, Any], AfterValidator(_check_grammar_schema)]
"""JSON schema of an answer. Decoding is constrained to this schema."""


class NamedSchema(RequestPart):
    model_config = ConfigDict(populate_by_name=True)

    name: str = "response"
    description: str | None = None
    strict: bool | None = None
    """Accepted for compatibility with OpenAI's API; decoding is always constrained to the schema."""
    schema_: Annotated[GrammarSchema, Field(alias="schema")]
    """JSON schema of the answer; references must not point outside the schema."""


class ResponseFormat(RequestPart):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("json_schema is missing")
        return self


class StreamOptions(RequestPart):
    include_usage: bool | None = None
    """Send the token counts in a final chunk."""


class SamplingRequest(RequestPart):
    """Base class of requests, with the keys that chat completions and responses share."""

    model_config = ConfigDict(extra="allow")

    model: Annotated[str, Field(min_length=1)]
    """Id of a base model, a tuned model or a checkpoint; see GET /models."""
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    """Sampling temperature; by default the temperature that was used in training."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample only from the most likely tokens whose probabilities add up to this value; by default from all tokens."""
    top_k: Annotated[int, Field(ge=0)] | None = None
    """Number of most likely tokens from which to sample; 0: sample from all tokens. An extension of OpenAI's API."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Minimum probability of a token, relative to the most likely token. An extension of OpenAI's API."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    """Seed that makes sampling reproducible, as far as the engine supports it."""
    parallel_tool_calls: bool | None = None
    """Whether one message may contain several calls."""
    stream: bool = False
    """Send the answer as server-sent events while it is generated."""
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    """Number of answers."""
    grader: dict[str, Any] | None = None
    """Grader that selects the best of `n` answers. Same format as `method.reinforcement.grader`. Extends
    OpenAI's API."""
    item: dict[str, Any] | None = None
    """Value of `item` in the grader's templates."""
    user: Any = None
    """Accepted for compatibility with OpenAI's API, but ignored."""
    service_tier: Any = None
    """Accepted for compatibility with OpenAI's API, but ignored."""
    safety_identifier: Any = None
    """Accepted for compatibility with OpenAI's API, but ignored."""
    prompt_cache_key: Any = None
    """Accepted for compatibility with OpenAI's API, but ignored."""
    prompt_cache_retention: Any = None
    """Accepted for compatibility with OpenAI's API, but ignored."""
    prompt_cache_options: Any = None
    """Accepted for compatibility with OpenAI's API, but ignored."""

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, body: Any) -> Any:
        """Remove optional keys whose value is null, and refuse unsupported keys."""
        if not isinstance(body, dict):
            return body
        body = {key: value for key, value in body.items() if value is not None or key in REQUIRED}
        refuse_keys(cls.__name__, body, cls.model_fields.keys())
        return body

    @property
    def ignored_keys(self) -> list[str]:
        """Labels of the keys that this server ignores."""
        return to_key_labels(self.model_extra or {})

    def _list_ignored_tools(self, tools: Iterable[RequestPart]) -> list[str]:
        found = {tool.type for tool in tools if isinstance(tool, IgnoredTool)}
        return sorted(found | ({WEB_SEARCH_KEY} & (self.model_extra or {}).keys()))


class ChatRequest(SamplingRequest):
    """Request for a chat completion."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    """Complete conversation. Tool results must directly follow the message that contains their calls."""
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS), AfterValidator(check_unique_names)] | None = None
    """Functions that the model may call. Known tools of other types are ignored."""
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    """Rule for calls in the answer: none (no calls), auto (the model decides), required (at least one call), or a
    function (the model must call this function)."""
    response_format: ResponseFormat | None = None
    """Format of the answer; the answer may also contain calls."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Older name of `max_completion_tokens`."""
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of tokens of the answer, including reasoning; by default the limit that was used in training."""
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    """Up to four strings at which generation ends."""
    logprobs: bool | None = None
    """Return each token's log-probability after temperature, `top_p` and the response format are applied."""
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """Number of the most likely tokens that are returned for each position, with their log-probabilities."""
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    """Numbers to add to the logits of tokens, by token id."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    reasoning_effort: Effort | None = None
    """Maximum number of reasoning tokens: low 512, medium 2048, high 8192; by default the limit used in training."""
    stream_options: StreamOptions | None = None
    store: Any = None
    """Accepted for compatibility with OpenAI's API, but ignored."""
    metadata: Any = None
    """Accepted for compatibility with OpenAI's API, but ignored."""
    verbosity: Any = None
    """Accepted for compatibility with OpenAI's API, but ignored."""
    modalities: Any = None
    """Accepted for compatibility with OpenAI's API, but ignored."""

    @model_validator(mode="after")
    def _check_combinations(self) -> ChatRequest:
        check_tool_choice(self.tool_choice, self.functions)
        wants_json = self.response_format is not None and self.response_format.type != "text"
        check_grammars(self.tool_choice, self.functions, wants_json=wants_json)
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs requires logprobs: true")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options requires stream: true")
        if self.grader is not None and self.stream:
            raise ValueError("stream cannot be combined with grader, which chooses among complete answers: omit stream")
        _check_turns(self.messages)
        return self

    @property
    def functions(self) -> list[ToolDefinition]:
        return [tool for tool in self.tools or () if isinstance(tool, ToolDefinition)]

    @property
    def ignored_tools(self) -> list[str]:
        """Types of the tools that this server ignores."""
        return self._list_ignored_tools(self.tools or ())

    def to_chat_body(self) -> dict[str, Any]:
        """Return the request body for a ModelServer, without the keys that the API itself handles."""
        unknown = (self.model_extra or {}).keys()
        body = self.model_dump(exclude_none=True, exclude={*SERVER_KEYS, *unknown}, by_alias=True)
        if self.tools:
            body["tools"] = [tool.model_dump(exclude_none=True) for tool in self.functions]
            if not body["tools"]:
                del body["tools"]
        if self.max_tokens is not None:
            body.setdefault("max_completion_tokens", self.max_tokens)
        for message in body["messages"]:
            message.setdefault("content", message.pop("refusal", None))
        return body


def _check_turns(messages: Sequence[PlainMessage | AssistantMessage | ToolMessage]) -> None:
    """Check that the results of a turn's calls directly follow the turn, because templates match them by position.

    Raises:
        ValueError: A result is missing, misplaced or duplicated.
    """
    open_calls: list[str] = []
    for i, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                raise ValueError(f"messages[{i}].tool_call_id does not match an unanswered call of the preceding turn")
            open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            call = truncate(open_calls[0], MAX_PARAM_CHARS)
            raise ValueError(f"messages[{i}]: the preceding call {call!r} has no tool message with its result")
        open_calls = [call.id for call in getattr(message, "tool_calls", None) or ()]
        if len(set(open_calls)) < len(open_calls):
            raise ValueError(f"messages[{i}].tool_calls: two calls have the same id")
    if open_calls:
        call = truncate(open_calls[0], MAX_PARAM_CHARS)
        raise ValueError(f"the call {call!r} has no tool message with its result")
