"""Schema of the messages in dataset rows. Reports the first error in a row, with its fix.

The schema is the same as in the API, except that ids of calls may be missing, and that arguments may be a JSON object
instead of a string.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Discriminator, Field, Tag, ValidationError

from agent_rft.chat.message_schema import AssistantContent, Parts, PlainMessage, RequestPart, message_kind
from agent_rft.spec.config_reader import describe_json_error, format_key_path, to_key_path
from agent_rft.types import Message, ToolSchema

CALL_FIX = 'write {"id": "call_1", "type": "function", "function": {"name": "...", "arguments": "{...}"}}'
PART_FIX = 'write a string, or a list of parts such as {"type": "text", "text": "..."}'
MESSAGE_FIX = 'write {"role": "user", "content": "..."}'
FIXES = {
    "tool_calls": CALL_FIX,
    "role": "set the role of each message",
    "content": PART_FIX,
    "tool_call_id": "write the id of the call, or omit it",
}
"""Fixes for errors, keyed by the name of the invalid field."""


class RowError(NamedTuple):
    """The error in a row, and the fix."""

    message: str
    fix: str


CallId = str | int | None
"""Id of a call. Numbers are accepted too, because the id is replaced before the template is rendered."""


class RowFunction(RequestPart):
    name: Annotated[str, Field(min_length=1)]
    arguments: Any = None


class RowCall(RequestPart):
    id: CallId = None
    function: RowFunction


class RowPlainMessage(PlainMessage):
    tool_calls: list[RowCall] | None = None


class RowAssistantMessage(AssistantContent):
    thinking: str | None = None
    tool_calls: list[RowCall] | None = None


class RowToolMessage(RequestPart):
    content: Parts
    tool_call_id: CallId = None
    name: str | None = None
    tool_calls: list[RowCall] | None = None


RowMessage = Annotated[
    Annotated[RowPlainMessage, Tag("plain")]
    | Annotated[RowAssistantMessage, Tag("assistant")]
    | Annotated[RowToolMessage, Tag("tool")],
    Discriminator(message_kind),
]


class RowMessages(BaseModel):
    messages: list[RowMessage]


def unwrap_item(row: Any) -> Any:
    """Return the object in `{"item": {...}}`, which is a row of OpenAI's evaluations; return other values unchanged."""
    match row:
        case {"item": dict(item)} if len(row) == 1:
            return item
    return row


def read_conversation(row: Any, is_supervised: bool) -> tuple[Message, ...] | RowError:
    """Return the messages of a parsed row, with text parts joined into strings; or the error in the row.

    If `is_supervised`, the row must end with an assistant message, otherwise with a user message.
    """
    if not isinstance(row, dict):
        return RowError("must be a JSON object", "write an object with `messages`")
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        if isinstance(row.get("item"), dict) and "messages" in row["item"]:
            fix = "move the keys of `item` to the top of the row, or remove all other keys"
            return RowError("messages is in `item`, which is not the only key of the row", fix)
        return RowError("messages is missing or empty", 'add "messages": [{"role": "user", "content": "..."}]')
    try:
        parsed = RowMessages.model_validate({"messages": messages}).messages
    except ValidationError as error:
        return _convert_error(error.errors(include_url=False)[0], row)
    last = messages[-1]["role"]
    if is_supervised and last != "assistant":
        return RowError(f"the last message has the role {last}", "end each conversation with the assistant's answer")
    if not is_supervised and last != "user":
        fix = "end with the user message that the model should answer"
        return RowError(f"the last message has the role {last}", fix)
    if (tool_error := _find_tool_error(row.get("tools"))) is not None:
        return tool_error
    return tuple(_join_content(given, message) for given, message in zip(messages, parsed, strict=True))


def _join_content(given: Message, message: RowPlainMessage | RowAssistantMessage | RowToolMessage) -> Message:
    """Return the message with its content as a string. All other keys are preserved, because templates read them."""
    if isinstance(given.get("content"), list):
        return {**given, "content": message.content}
    if isinstance(message, RowAssistantMessage) and message.content is None and message.refusal is not None:
        return {**given, "content": message.refusal}
    return given


def _convert_error(error: Any, row: dict[str, Any]) -> RowError:
    """Convert a pydantic error to a RowError, whose message contains the path in the row."""
    path = to_key_path(error["loc"], row, missing=error["type"] == "missing")
    fix = MESSAGE_FIX if isinstance(path[-1], int) else "correct the value"
    fix = next((FIXES[str(key)] for key in reversed(path) if key in FIXES), fix)
    return RowError(describe_json_error(format_key_path(path), error), fix)


def _find_tool_error(tools: Any) -> RowError | None:
    if tools is not None and not isinstance(tools, list):
        return RowError("tools must be a list", "write a list of function tools, or omit `tools`")
    for i, tool in enumerate(tools or []):
        function = to_chat_tool(tool).get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            fix = 'write {"type": "function", "function": {"name": ...}}'
            return RowError(f"tools[{i}].function.name is missing", fix)
        if not isinstance(function.get("parameters", {}), dict):
            return RowError(f"tools[{i}].function.parameters must be a JSON schema", "write a JSON object")
    names = [to_chat_tool(tool)["function"]["name"] for tool in tools or []]
    if len(set(names)) < len(names):
        return RowError("two tools have the same name", "give each tool a unique name")
    return None


def to_chat_tool(tool: ToolSchema) -> ToolSchema:
    """Return a row's tool in chat format, without `parameters` if they are null.

    A tool in the format of the Responses API has no `function`. All its keys except `type` are moved into a new
    `function`.
    """
    if tool.get("function") is None and tool.get("type") == "function":
        tool = {"type": "function", "function": {k: v for k, v in tool.items() if k not in ("type", "function")}}
    function = tool.get("function")
    if isinstance(function, dict) and function.get("parameters", {}) is None:
        return {**tool, "function": {key: value for key, value in function.items() if key != "parameters"}}
    return tool
