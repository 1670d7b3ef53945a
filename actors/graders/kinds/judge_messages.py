"""The `input` of judges: messages that contain templates, in the format of the wire contract or the chat API."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Role in the spec -> role in the request. Many servers do not support `developer`."""
TEXT_PARTS = ("input_text", "output_text", "text")
MESSAGE_KEYS = {"role", "content", "type"}

MARKERS = re.compile(
    r"<(?=[|｜]\w|/?s>|/?think>|/?SYS>|bos>|eos>|(?:start|end)_of_turn>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\])"
)
"""Pattern of markers that chat templates write between messages, such as <|im_end|>, </s> or [INST].

The pattern matches only the first character of a marker."""

Fill = Callable[[str, str], str]
"""Function (template, name of the field that contains the template) -> rendered template."""


def escape_markers(text: str) -> str:
    """Return `text` with a space inserted into each chat template marker.

    Many servers also interpret markers inside a message. Without the spaces, a graded answer could use a marker to end
    the message early, and then pretend to be the judge's reply.
    """
    return MARKERS.sub(lambda first: f"{first[0]} ", text)


def message_problems(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield (field, problem) for each invalid message or message part. `input[0].role` is an example of a field."""
    for i, message in enumerate(messages):
        field = f"input[{i}]"
        if message.get("role") not in ROLES:
            yield f"{field}.role", f"is {message.get('role')!r}, but must be one of {', '.join(ROLES)}"
        unknown = sorted(set(message) - MESSAGE_KEYS)
        if unknown:
            yield field, f"has the unknown keys {', '.join(unknown)}; a message has role and content"
        for part_field, part in _iterate_parts(message.get("content"), f"{field}.content"):
            if _template_key(part) is None:
                objects = '{"type": "input_text", "text": ...} or {"type": "input_image", ...}'
                yield part_field, f"must be a string, {objects}"


def message_templates(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield (field, template) for each template in valid messages. `input[0].content` is an example of a field."""
    for i, message in enumerate(messages):
        for part_field, part in _iterate_parts(message.get("content"), f"input[{i}].content"):
            if isinstance(part, str):
                yield part_field, part
            elif (key := _template_key(part)) is not None:
                yield f"{part_field}.{key}", part[key]


def chat_messages(messages: Sequence[Mapping[str, Any]], fill: Fill) -> list[dict[str, Any]]:
    """Return the messages in the chat API's format, with their templates rendered by `fill`."""
    return [
        {"role": ROLES[message["role"]], "content": _convert_content(message["content"], f"input[{i}].content", fill)}
        for i, message in enumerate(messages)
    ]


def _convert_content(content: Any, field: str, fill: Fill) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return fill(content, field)
    parts: list[dict[str, Any]] = []
    for part_field, part in _iterate_parts(content, field):
        if isinstance(part, str):
            parts.append({"type": "text", "text": fill(part, part_field)})
        elif part["type"] in TEXT_PARTS:
            parts.append({"type": "text", "text": fill(part["text"], f"{part_field}.text")})
        else:
            image = {"url": fill(part["image_url"], f"{part_field}.image_url")}
            image |= {"detail": part["detail"]} if part.get("detail") else {}
            parts.append({"type": "image_url", "image_url": image})
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return texts[0] if len(parts) == len(texts) == 1 else parts


def _iterate_parts(content: Any, field: str) -> Iterator[tuple[str, Any]]:
    """Yield (field, part) for each part of a message's content.

    The content is a string, one part, or a list of strings and parts. A string is yielded like a part.
    """
    if isinstance(content, list):
        yield from ((f"{field}[{i}]", part) for i, part in enumerate(content))
    else:
        yield field, content


def _template_key(part: Any) -> str | None:
    """Return the key under which a part contains its template: "text" or "image_url".

    If the part is a string, the string is the template, and the result is "". If the part is invalid, the result is
    None.
    """
    if isinstance(part, str):
        return ""
    if not isinstance(part, dict):
        return None
    key = "text" if part.get("type") in TEXT_PARTS else "image_url" if part.get("type") == "input_image" else ""
    return key if key and isinstance(part.get(key), str) else None
