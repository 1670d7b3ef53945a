"""Text of a tool's output, which may be a string, any other JSON value, or content parts."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from agent_rft.chat.message_schema import TEXT_PARTS, join_texts

OTHER_PARTS = {
    "audio": ("data",),
    "file": ("file",),
    "image": ("data", "source"),
    "image_url": ("image_url",),
    "input_audio": ("input_audio",),
    "input_file": ("file_id", "file_data", "file_url"),
    "input_image": ("image_url", "file_id"),
    "resource": ("resource",),
    "resource_link": ("uri",),
    "video_url": ("video_url",),
}
"""Types of content parts other than text in OpenAI's, Anthropic's and MCP's formats, with the keys of each type.

A part has at least one of the keys of its type. The keys distinguish a part from a tool's own records, such as
`{"type": "file", "path": "a.txt"}`."""


class ReadableOutput(NamedTuple):
    """A tool's output as the model reads it.

    `unsupported` is the type of the first part that is not text; empty if all parts are text. `is_error` is True if
    the output is a result in MCP's format that reports an error.
    """

    text: str
    unsupported: str = ""
    is_error: bool = False


def read_output(output: Any) -> ReadableOutput:
    """Convert a tool's JSON value `output` to text.

    A list of parts, or MCP's `{"content": [parts], "isError": ...}`, becomes the joined text of its parts. Null is an
    empty result. Any other value that is not a string becomes JSON.
    """
    if output is None:
        return ReadableOutput("")
    if isinstance(output, list) and output and all(map(_is_part, output)):
        return _join_output(output)
    if isinstance(output, dict) and _is_mcp_result(output):
        return _join_output(output["content"])._replace(is_error=output.get("isError") is True)
    return ReadableOutput(output if isinstance(output, str) else json.dumps(output, ensure_ascii=False))


def _is_part(value: Any) -> bool:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        return False
    if kind in TEXT_PARTS:
        return isinstance(value.get("text"), str)
    return any(key in value for key in OTHER_PARTS.get(kind, ()))


def _is_mcp_result(output: dict[str, Any]) -> bool:
    content = output.get("content")
    known = output.keys() <= {"content", "isError", "structuredContent", "_meta"}
    return known and isinstance(content, list) and bool(content or "isError" in output) and all(map(_is_part, content))


def _join_output(parts: list[dict[str, Any]]) -> ReadableOutput:
    others = [part["type"] for part in parts if part["type"] not in TEXT_PARTS]
    return ReadableOutput("", others[0]) if others else ReadableOutput(join_texts(part["text"] for part in parts))
