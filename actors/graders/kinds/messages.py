"""The `input` of judge graders: messages whose texts are templates, in the wire contract's form or the chat API's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Ours -> the chat API's. Many servers know no developer."""
TEXT_PARTS = ("input_text", "output_text", "text")
MESSAGE_KEYS = {"role", "content", "type"}

Fill = Callable[[str, str], str]
"""(template, where it stands) -> text"""


def message_problems(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """(place below the grader, what is wrong there)."""
    for i, message in enumerate(messages):
        place = f"input[{i}]"
        if message.get("role") not in ROLES:
            yield f"{place}.role", f"is {message.get('role')!r}, but must be one of {', '.join(ROLES)}"
        unknown = sorted(set(message) - MESSAGE_KEYS)
        if unknown:
            yield place, f"holds the unknown keys {', '.join(unknown)}; a message has role and content"
        for where, part in _parts(message.get("content"), f"{place}.content"):
            if _text_key(part) is None:
                yield where, 'must be a text, {"type": "input_text", "text": ...} or {"type": "input_image", ...}'


def message_templates(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """(place below the grader, template) of all texts in messages without problems."""
    for i, message in enumerate(messages):
        for where, part in _parts(message.get("content"), f"input[{i}].content"):
            if isinstance(part, str):
                yield where, part
            elif (key := _text_key(part)) is not None:
                yield f"{where}.{key}", part[key]


def chat_messages(messages: Sequence[Mapping[str, Any]], fill: Fill) -> list[dict[str, Any]]:
    """The messages as the chat API takes them, their texts filled in."""
    return [
        {"role": ROLES[message["role"]], "content": _content(message["content"], f"input[{i}].content", fill)}
        for i, message in enumerate(messages)
    ]


def _content(content: Any, place: str, fill: Fill) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return fill(content, place)
    parts: list[dict[str, Any]] = []
    for where, part in _parts(content, place):
        if isinstance(part, str):
            parts.append({"type": "text", "text": fill(part, where)})
        elif part["type"] in TEXT_PARTS:
            parts.append({"type": "text", "text": fill(part["text"], f"{where}.text")})
        else:
            image = {"url": fill(part["image_url"], f"{where}.image_url")}
            image |= {"detail": part["detail"]} if part.get("detail") else {}
            parts.append({"type": "image_url", "image_url": image})
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return texts[0] if len(parts) == len(texts) == 1 else parts


def _parts(content: Any, place: str) -> Iterator[tuple[str, Any]]:
    """(place, part) of a content that is a text, one part or a list of both."""
    if isinstance(content, list):
        yield from ((f"{place}[{i}]", part) for i, part in enumerate(content))
    else:
        yield place, content


def _text_key(part: Any) -> str | None:
    """Under what key a part holds its template; "" for one that is a text itself, None for what is no part."""
    if isinstance(part, str):
        return ""
    if not isinstance(part, dict):
        return None
    key = "text" if part.get("type") in TEXT_PARTS else "image_url" if part.get("type") == "input_image" else ""
    return key if key and isinstance(part.get(key), str) else None
