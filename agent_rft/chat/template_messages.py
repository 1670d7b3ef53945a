"""Conversion of conversations from OpenAI's format to the messages that a chat template takes."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NoReturn

from agent_rft.chat.model_family import ModelFamily
from agent_rft.chat.template import make_render_error
from agent_rft.chat.template_format import INSTRUCTION_ROLES, TemplateFormat, set_reasoning
from agent_rft.types import Message

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Keys in which clients and datasets store the reasoning of an assistant's message; the first one present is used."""


def to_template_messages(
    messages: Sequence[Message], target_format: TemplateFormat, family: ModelFamily, *, has_reasoning: bool
) -> list[Message]:
    """Convert messages in OpenAI's format to messages for a template.

    Contents become strings; arguments become objects or strings, as the template requires. Developer messages that the
    template does not render become system messages. Reasoning moves to the field from which the template reads it, or
    is removed if the model does not reason. Tool results are sorted in the order of their calls. If the template
    accepts only one call per turn, a turn with several calls is split.

    Raises:
        RenderFailed: The template can render neither a developer message nor a system message in its place.
    """
    plain = [_move_reasoning(_flatten_content(message), target_format, family, has_reasoning) for message in messages]
    return [
        changed
        for turn, results in _iter_turns(_replace_call_ids(_place_developer_messages(plain, target_format), family))
        for changed in _convert_calls(turn, results, target_format, family)
    ]


def _replace_call_ids(messages: Sequence[Message], family: ModelFamily) -> list[Message]:
    """Replace the ids of calls and results with reproducible ids."""
    ids: dict[str, str] = {}
    changed: list[Message] = []
    count = 0
    for message in messages:
        if calls := message.get("tool_calls"):
            named = []
            for call in calls:
                id = family.call_id_format.format(name=call["function"]["name"], index=count)
                count += 1
                ids[call.get("id") or id] = id
                named.append({**call, "id": id})
            message = {**message, "tool_calls": named}
        elif message["role"] == "tool":
            message = {**message, "tool_call_id": ids.get(message.get("tool_call_id") or "", f"call{count:05d}")}
        changed.append(message)
    return changed


def _flatten_content(message: Message) -> Message:
    """Return the message with its content as a string."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return {**message, "content": content or ""}


def _place_developer_messages(messages: Sequence[Message], target_format: TemplateFormat) -> list[Message]:
    """Replace developer messages that the template does not render with system messages.

    Consecutive system and developer messages become one message, in which a blank line separates their texts.
    """
    placed: list[Message] = []
    for is_instruction, group in groupby(messages, key=lambda message: message["role"] in INSTRUCTION_ROLES):
        run = list(group)
        if is_instruction and any(message["role"] == "developer" for message in run):
            is_first, own = run[0] is messages[0], tuple(message["role"] for message in run)
            if (roles := target_format.find_instruction_roles(own, is_first=is_first)) is None:
                what = "developer or system messages" if is_first else "developer messages after the first turn"
                raise make_render_error("misplaced", f"the chat template does not render {what}")
            if roles != own:
                run = [{**run[0], "role": "system", "content": "\n\n".join(m["content"] for m in run if m["content"])}]
        placed += run
    return placed


def _iter_turns(messages: Sequence[Message]) -> Iterator[tuple[Message, list[Message]]]:
    """Yield (message, tool results) for each turn; the results are sorted in the order of the message's calls."""
    names: dict[str, str] = {}
    number = 0
    while number < len(messages):
        message, stop = messages[number], number + 1
        calls = message.get("tool_calls") or ()
        names |= {call["id"]: call["function"]["name"] for call in calls if call.get("id")}
        while calls and stop < len(messages) and messages[stop]["role"] == "tool":
            stop += 1
        order = {call.get("id"): place for place, call in enumerate(calls)}
        results = sorted(
            messages[number + 1 : stop], key=lambda result: order.get(result.get("tool_call_id"), len(order))
        )
        if message["role"] == "tool":
            message = _with_tool_name(message, names)
        yield message, [_with_tool_name(result, names) for result in results]
        number = stop


def _with_tool_name(result: Message, names: Mapping[str, str]) -> Message:
    return {**result, "name": names.get(result.get("tool_call_id") or "", result.get("name") or "tool")}


def _convert_calls(
    turn: Message, results: list[Message], target_format: TemplateFormat, family: ModelFamily
) -> list[Message]:
    calls = turn.get("tool_calls") or ()
    if not calls:
        without = {key: value for key, value in turn.items() if key != "tool_calls"}
        return [without, *results]
    if not target_format.renders_calls and family.write_calls is not None:
        written = family.write_calls([(call["function"]["name"], _arguments_object(call)) for call in calls])
        without = {key: value for key, value in turn.items() if key != "tool_calls"}
        return [{**without, "content": f"{turn['content']}{written}"}, *results]
    given = [_convert_call(call, target_format) for call in calls]
    if target_format.takes_several_calls or len(given) == 1:
        return [{**turn, "tool_calls": given}, *results]
    split_turns = [
        {**turn, "tool_calls": [call], **({"content": ""} if place else {})} for place, call in enumerate(given)
    ]
    rest = results[len(given) :]
    return (
        [message for pair in zip(split_turns, results, strict=False) for message in pair]
        + split_turns[len(results) :]
        + rest
    )


def _move_reasoning(turn: Message, target_format: TemplateFormat, family: ModelFamily, thinks: bool) -> Message:
    if turn["role"] != "assistant":
        return turn
    reasoning = next((turn[key] for key in REASONING_KEYS if turn.get(key)), None)
    turn = {key: value for key, value in turn.items() if key not in REASONING_KEYS}
    if reasoning is None or not thinks or target_format.reasoning_field is None:
        return turn
    return set_reasoning(turn, reasoning, target_format.reasoning_field, family.reasoning_delimiters)


def _convert_call(call: dict[str, Any], target_format: TemplateFormat) -> dict[str, Any]:
    function = call["function"]
    arguments = (
        _arguments_object(call) if target_format.takes_argument_objects else format_arguments(function.get("arguments"))
    )
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def format_arguments(arguments: Any) -> str:
    """Return a call's arguments as JSON text; missing, null and blank arguments become `{}`."""
    if not isinstance(arguments, str):
        return json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return arguments if arguments.strip() else "{}"


class _NotJson(ValueError):
    """Error: the text contains an invalid number, such as `NaN` or `1e999`, or is nested too deeply."""


def parse_arguments(arguments: str) -> Any:
    """Parse the arguments of a sampled call. Only JSON that every JSON parser can read is accepted.

    Raises:
        UnicodeEncodeError: A string contains half of a surrogate pair.
        ValueError: The text is not valid JSON. The message has the reason.
    """
    try:
        value = json.loads(arguments, parse_constant=_refuse_constant, parse_float=_parse_finite)
        if not arguments.isascii() or "\\u" in arguments:
            json.dumps(value, ensure_ascii=False).encode()
    except (json.JSONDecodeError, _NotJson, UnicodeEncodeError):
        raise
    except (ValueError, RecursionError):  # thousands of digits, or thousands of levels
        raise _NotJson("a number has too many digits, or the nesting is too deep") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise _NotJson(f"{name} is not a JSON number")


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _NotJson(f"the number {text[:20]} is too large")
    return number


def _arguments_object(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments as an object; text that is not a JSON object becomes `{"arguments": text}`."""
    arguments = format_arguments(call["function"].get("arguments"))
    value: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(arguments)
    return value if isinstance(value, dict) else {"arguments": arguments}
