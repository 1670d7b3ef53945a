"""Schema of requests to /responses.

The server keeps no state, so keys such as `conversation` are rejected. `request_keys` lists the other unsupported keys
that are rejected. Other unknown keys are ignored. A key with the value `null` is treated like an absent key.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

from agent_rft.chat.message_schema import Arguments, CalledFunction, Parts, RequestPart, content_kind
from agent_rft.wire.api_errors import truncate
from agent_rft.wire.chat_schema import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Effort,
    ResponseFormat,
    SamplingRequest,
)
from agent_rft.wire.tool_schema import (
    FunctionDefinition,
    IgnoredTool,
    NamedFunction,
    NamedTool,
    ToolDefinition,
    check_grammars,
    check_tool_choice,
    check_tool_type,
    check_unique_names,
    tool_kind,
)

INCLUDE_ENCRYPTED_REASONING = "reasoning.encrypted_content"
STATEFUL_KEYS = ("previous_response_id", "conversation", "background", "prompt")


class MessageItem(RequestPart):
    type: Literal["message"] = "message"
    role: Literal["developer", "system", "user", "assistant"]
    content: Parts


class CallItem(RequestPart):
    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    arguments: Arguments = "{}"
    """JSON object as a string; null and blank strings mean `{}`."""

    def function(self) -> CalledFunction:
        return CalledFunction(name=self.name, arguments=self.arguments)


class CallOutputItem(RequestPart):
    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1)]
    """The `call_id` of a function call in the input."""
    output: Parts
    """Result of the call."""


class ReasoningItem(RequestPart):
    type: Literal["reasoning"]
    encrypted_content: str | None = None
    """Encrypted reasoning from an earlier response, sent back by the client."""


def _item_kind(item: Any) -> Any:
    if not isinstance(item, dict):
        return None
    return item.get("type") or ("message" if "role" in item else None)


ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")


def _check_item_type(item: Any) -> Any:
    match item:
        case {"type": str(kind)} if kind not in ITEM_TYPES:
            message = "items of the type {kind} are not supported; remove the item, or write it as a message"
            raise PydanticCustomError("unknown_item_type", message, {"kind": repr(truncate(kind, 100))})
    return item


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_item_kind),
    BeforeValidator(_check_item_type),
]


class FlatTool(FunctionDefinition):
    """Tool in the flat format of /responses, which has no key `function`."""

    type: Literal["function"]

    def to_chat_tool(self) -> ToolDefinition:
        """Return the tool in the format of chat completions, which is also the format of tools in training rows."""
        function = self.model_dump(exclude_none=True, exclude={"type"})
        return ToolDefinition(type="function", function=FunctionDefinition(**function))


ResponsesTool = Annotated[
    Annotated[FlatTool, Tag("function_tool")] | Annotated[IgnoredTool, Tag("ignored_tool")],
    Discriminator(tool_kind),
    BeforeValidator(check_tool_type),
]


class FlatNamedTool(RequestPart):
    type: Literal["function"]
    name: str


class ReasoningOptions(RequestPart):
    effort: Effort | None = None
    """Maximum number of reasoning tokens: low 512, medium 2048, high 8192; by default the limit used in training."""
    summary: Any = None
    """Accepted but ignored: responses contain no summaries."""


class TextOptions(RequestPart):
    """Options for the text of the answer.

    `format` is sent in OpenAI's flat format and is converted to the format of chat completions.
    """

    format: ResponseFormat | None = None

    @field_validator("format", mode="before")
    @classmethod
    def _to_chat_format(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") == "json_schema" and "json_schema" not in value:
            return {"type": "json_schema", "json_schema": {key: value[key] for key in value if key != "type"}}
        return value


class ResponsesRequest(SamplingRequest):
    """Request to /responses."""

    input: Annotated[
        Annotated[str, Tag("text")]
        | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES), Tag("list")],
        Discriminator(content_kind),
    ]
    """String, or the complete conversation as items: messages, output items of earlier responses, and results of
    calls."""
    instructions: str | None = None
    """System message before the input."""
    tools: Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS)] | None = None
    """Functions that the model may call. Known tools of other types are ignored."""
    tool_choice: Literal["none", "auto", "required"] | FlatNamedTool | None = None
    """Rule for calls in the answer: none (no calls), auto (the model decides), required (at least one call), or a
    function (the model must call this function)."""
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    """Format of the answer."""
    include: list[str] = Field(default_factory=list)
    """Additional output: `reasoning.encrypted_content` returns the encrypted reasoning, for use in the next turn."""
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of tokens of the answer, including reasoning; by default the limit that was used in training."""
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    """Up to 16 key-value pairs, which the response repeats."""
    store: bool | None = None
    """Ignored: responses are never stored."""
    truncation: Literal["auto", "disabled"] | None = None
    """Ignored: a conversation that is too long is rejected."""
    stream_options: Any = None
    """Accepted for compatibility with OpenAI's API, but ignored."""
    previous_response_id: Any = None
    """Rejected: the server keeps no state. Send the complete conversation as input."""
    conversation: Any = None
    """Rejected: the server keeps no state. Send the complete conversation as input."""
    background: Any = None
    """Rejected: the server keeps no state. Send the complete conversation as input."""
    prompt: Any = None
    """Rejected: the server keeps no state. Send the complete conversation as input."""
    max_tool_calls: Any = None
    """Accepted for compatibility with OpenAI's API, but ignored."""

    @field_validator(*STATEFUL_KEYS)
    @classmethod
    def _refuse_state(cls, value: Any) -> Any:
        if value:
            message = "this server does not store responses: send the complete conversation as input, with store: false"
            raise ValueError(message)
        return value

    @model_validator(mode="after")
    def _check_combinations(self) -> ResponsesRequest:
        check_tool_choice(self.chat_tool_choice, self.chat_tools)
        check_grammars(self.chat_tool_choice, self.chat_tools, wants_json=self.wants_json)
        if self.grader is not None and self.stream:
            raise ValueError("stream cannot be combined with grader, which chooses among complete answers: omit stream")
        if self.n > 1 and self.grader is None:
            raise ValueError("n above 1 requires a grader, which selects the answer to return")
        return self

    @property
    def items(self) -> list[MessageItem | CallItem | CallOutputItem | ReasoningItem]:
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return list(self.input)

    @property
    def chat_tools(self) -> list[ToolDefinition]:
        return check_unique_names([tool.to_chat_tool() for tool in self.functions])

    @property
    def functions(self) -> list[FlatTool]:
        return [tool for tool in self.tools or () if isinstance(tool, FlatTool)]

    @property
    def ignored_tools(self) -> list[str]:
        """Types of the tools that this server ignores."""
        return self._list_ignored_tools(self.tools or ())

    @property
    def chat_tool_choice(self) -> Literal["none", "auto", "required"] | NamedTool | None:
        if isinstance(self.tool_choice, FlatNamedTool):
            return NamedTool(type="function", function=NamedFunction(name=self.tool_choice.name))
        return self.tool_choice

    @property
    def wants_json(self) -> bool:
        return self.text is not None and self.text.format is not None and self.text.format.type != "text"
