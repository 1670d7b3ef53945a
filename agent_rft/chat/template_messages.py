"""Conversion of conversations from OpenAI's format to the messages that a chat template takes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_rft.chat.model_family import ModelFamily
from agent_rft.chat.template_format import TemplateFormat, set_reasoning
from agent_rft.types import Message

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Keys in which clients and datasets store the reasoning of an assistant's message; the first one present is used."""


def to_template_messages(
    messages: Sequence[Message], form: TemplateFormat, family: ModelFamily, *, has_reasoning: bool
) -> list[Message]:
    """Convert messages to the format of the template; reasoning is removed unless the model `has_reasoning`.

    Contents become strings, arguments become objects or strings, and reasoning moves to the field that the template
    reads. Results follow in the order of their calls. If the template takes one call per turn, a turn with several is
    split.
    """
    plain = [_move_reasoning(_flatten_content(message), form, family, has_reasoning) for message in messages]
    return [
        changed
        for turn, results in _turns(_with_ids(plain, family))
        for changed in _with_calls(turn, results, form, family)
    ]


def _with_ids(messages: Sequence[Message], family: ModelFamily) -> list[Message]:
    """Return the messages with call ids that depend only on the conversation, since some models see the ids."""
    ids: dict[str, str] = {}
    changed: list[Message] = []
    count = 0
    for message in messages:
        if calls := message.get("tool_calls"):
            named = []
            for call in calls:
                id = family.call_id.format(name=call["function"]["name"], index=count)
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


def _turns(messages: Sequence[Message]) -> Iterator[tuple[Message, list[Message]]]:
    """Yield each message with the results that follow it, in the order of its calls."""
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


def _with_calls(turn: Message, results: list[Message], form: TemplateFormat, family: ModelFamily) -> list[Message]:
    calls = turn.get("tool_calls") or ()
    if not calls:
        without = {key: value for key, value in turn.items() if key != "tool_calls"}
        return [without, *results]
    if not form.renders_calls and family.write_calls is not None:
        written = family.write_calls([(call["function"]["name"], _arguments_object(call)) for call in calls])
        without = {key: value for key, value in turn.items() if key != "tool_calls"}
        return [{**without, "content": f"{turn['content']}{written}"}, *results]
    given = [_call(call, form) for call in calls]
    if form.takes_several_calls or len(given) == 1:
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


def _move_reasoning(turn: Message, form: TemplateFormat, family: ModelFamily, thinks: bool) -> Message:
    if turn["role"] != "assistant":
        return turn
    reasoning = next((turn[key] for key in REASONING_KEYS if turn.get(key)), None)
    turn = {key: value for key, value in turn.items() if key not in REASONING_KEYS}
    if reasoning is None or not thinks or form.reasoning_field is None:
        return turn
    return set_reasoning(turn, reasoning, form.reasoning_field, family.reasoning_delimiters)


def _call(call: dict[str, Any], form: TemplateFormat) -> dict[str, Any]:
    function = call["function"]
    arguments = _arguments_object(call) if form.takes_objects else format_arguments(function.get("arguments"))
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def format_arguments(arguments: Any) -> str:
    """Return a call's arguments as JSON text; missing, null and blank arguments become `{}`."""
    if not isinstance(arguments, str):
        return json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return arguments if arguments.strip() else "{}"


def _arguments_object(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments as an object; sampled text that is not a JSON object is wrapped unchanged."""
    arguments = format_arguments(call["function"].get("arguments"))
    value: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(arguments)
    return value if isinstance(value, dict) else {"arguments": arguments}
