"""The form of a turn, the same in rollouts and in serving: constrained decoding, and tool results that are cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trainer.data.chat import Renderer

CUT_MARK = "\n[... {} tokens cut ...]"


def cut_result(renderer: Renderer, output: str, limit: int) -> tuple[list[int], bool]:
    """The tokens of a tool's output, cut at `limit` with a mark that the model sees, and whether it was cut."""
    ids = renderer.plain(output)
    if len(ids) <= limit:
        return ids, False
    return ids[:limit] + renderer.plain(CUT_MARK.format(len(ids) - limit)), True


def turn_structure(tools: Sequence[dict[str, Any]], response_schema: dict[str, Any] | None) -> str | None:
    """The structural tag of a turn (tool calls or an answer of the response schema); None without a response schema."""
    if response_schema is None:
        return None
    answer = {"type": "json_schema", "json_schema": response_schema}
    tags = [_call_tag(tool) for tool in tools]
    calls = {"type": "tags_with_separator", "tags": tags, "separator": "\n", "at_least_one": True}
    return json.dumps(
        {"type": "structural_tag", "format": {"type": "or", "elements": [calls, answer] if tags else [answer]}}
    )


def _call_tag(tool: dict[str, Any]) -> dict[str, Any]:
    """The tag of a call in the Hermes format."""
    function = tool["function"]
    return {
        "type": "tag",
        "begin": f'<tool_call>\n{{"name": "{function["name"]}", "arguments": ',
        "content": {"type": "json_schema", "json_schema": function.get("parameters") or {"type": "object"}},
        "end": "}\n</tool_call>",
    }
