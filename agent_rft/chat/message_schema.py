"""Schema of conversations in OpenAI's chat format: messages, text parts and tool calls.

Requests to the API and dataset rows share these models. `agent_rft.rows.row_schema` relaxes them for rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from agent_rft.chat.template_messages import format_arguments

TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of the content parts whose `text` is the message's text."""
MAX_TYPE_CHARS = 40


class RequestPart(BaseModel):
    """Base class of the objects in a request or a row. Unknown keys of these objects are ignored."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="ignore")


def _check_part_type(value: Any) -> Any:
    if isinstance(value, str) and value not in (*TEXT_PARTS, "refusal"):
        raise ValueError(f"the part type {value[:MAX_TYPE_CHARS]!r} is not supported; use parts of the type text")
    return value


class ContentPart(RequestPart):
    """One part of a message's content. Only text is supported."""

    type: Annotated[Literal["text", "input_text", "output_text", "refusal"], BeforeValidator(_check_part_type)]
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _check_text(self) -> ContentPart:
        if self.text is None and self.refusal is None:
            raise ValueError("the content part has no text")
        return self


def _join_parts(value: str | list[ContentPart] | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return join_texts(part.text if part.text is not None else part.refusal or "" for part in value)


def join_texts(texts: Iterable[str]) -> str:
    """Join the texts of content parts into the text that the model reads."""
    return "\n".join(texts)


def content_kind(value: Any) -> str:
    """Return the type of the content: "list" or "text". Pydantic then validates the content only as this type."""
    return "list" if isinstance(value, list) else "text"


Parts = Annotated[
    Annotated[
        Annotated[str, Tag("text")] | Annotated[list[ContentPart], Tag("list")],
        Discriminator(content_kind),
    ],
    AfterValidator(_join_parts),
]
"""Content as a string, or as a list of text parts, which are joined into one string."""


def message_kind(message: Any) -> str:
    """Return the kind of a message: its role if the role is `assistant` or `tool`, otherwise `plain`.

    Pydantic selects the class of the message by this kind.
    """
    role = message.get("role") if isinstance(message, dict) else getattr(message, "role", None)
    return role if role in ("assistant", "tool") else "plain"


class PlainMessage(RequestPart):
    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: Parts


def _normalize_arguments(value: Any) -> Any:
    return format_arguments(value) if value is None or isinstance(value, str) else value


Arguments = Annotated[str, BeforeValidator(_normalize_arguments)]


class CalledFunction(RequestPart):
    name: Annotated[str, Field(min_length=1)]
    arguments: Arguments = "{}"
    """JSON object as a string; null and blank strings mean `{}`."""


class ToolCallPart(RequestPart):
    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantContent(RequestPart):
    """An assistant's message without its calls. Subclasses add `tool_calls`."""

    role: Literal["assistant"]
    content: Parts | None = None
    """Text of the message; may be omitted if there are `tool_calls`."""
    refusal: str | None = None
    reasoning: str | None = None
    """Reasoning of an earlier answer, sent back by the client."""
    reasoning_content: str | None = None
    """Another name of `reasoning`, which some clients use."""

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if self.content is None and not getattr(self, "tool_calls", None) and self.refusal is None:
            raise ValueError("content is missing: it may be omitted only if there are tool_calls")
        return self


class AssistantMessage(AssistantContent):
    tool_calls: list[ToolCallPart] | None = None


class ToolMessage(RequestPart):
    role: Literal["tool"]
    content: Parts
    """Result of the call."""
    tool_call_id: Annotated[str, Field(min_length=1)]
    """The `id` of a call in the preceding assistant message."""


ChatMessage = Annotated[
    Annotated[PlainMessage, Tag("plain")]
    | Annotated[AssistantMessage, Tag("assistant")]
    | Annotated[ToolMessage, Tag("tool")],
    Discriminator(message_kind),
]
