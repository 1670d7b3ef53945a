"""The `input` of judges: messages whose texts are templates, in the format of the wire contract or the chat API."""

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
"""The first character of what chat templates write between messages, such as <|im_end|>, </s> or [INST]."""

Fill = Callable[[str, str], str]
"""(template, its field) -> text"""


def without_markers(text: str) -> str:
    """`text` with a space in each marker, since many servers read them as markers in the text of a message, too.

    Else an answer could end its message and go on as the judge.
    """
    return MARKERS.sub(lambda first: f"{first[0]} ", text)


def message_problems(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """(field relative to the grader, what is wrong with it)."""
    for i, message in enumerate(messages):
        field = f"input[{i}]"
        if message.get("role") not in ROLES:
            yield f"{field}.role", f"is {message.get('role')!r}, but must be one of {', '.join(ROLES)}"
        unknown = sorted(set(message) - MESSAGE_KEYS)
        if unknown:
            yield field, f"has the unknown keys {', '.join(unknown)}; a message has role and content"
        for part_field, part in _parts(message.get("content"), f"{field}.content"):
            if _text_key(part) is None:
                form = '{"type": "input_text", "text": ...} or {"type": "input_image", ...}'
                yield part_field, f"must be a string, {form}"


def message_templates(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """(field relative to the grader, template) of all texts in valid messages."""
    for i, message in enumerate(messages):
        for part_field, part in _parts(message.get("content"), f"input[{i}].content"):
            if isinstance(part, str):
                yield part_field, part
            elif (key := _text_key(part)) is not None:
                yield f"{part_field}.{key}", part[key]


def chat_messages(messages: Sequence[Mapping[str, Any]], fill: Fill) -> list[dict[str, Any]]:
    """The messages in the chat API's format, with their templates rendered."""
    return [
        {"role": ROLES[message["role"]], "content": _content(message["content"], f"input[{i}].content", fill)}
        for i, message in enumerate(messages)
    ]


def _content(content: Any, field: str, fill: Fill) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return fill(content, field)
    parts: list[dict[str, Any]] = []
    for part_field, part in _parts(content, field):
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


def _parts(content: Any, field: str) -> Iterator[tuple[str, Any]]:
    """(field, part) of each part of a content, which is a string, one part or a list of both."""
    if isinstance(content, list):
        yield from ((f"{field}[{i}]", part) for i, part in enumerate(content))
    else:
        yield field, content


def _text_key(part: Any) -> str | None:
    """The key of a part's template; "" for a part that is a string itself, None for an invalid part."""
    if isinstance(part, str):
        return ""
    if not isinstance(part, dict):
        return None
    key = "text" if part.get("type") in TEXT_PARTS else "image_url" if part.get("type") == "input_image" else ""
    return key if key and isinstance(part.get(key), str) else None
