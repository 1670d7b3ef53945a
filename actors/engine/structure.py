"""The text of a turn: what decoding is held to, and how a tool's result is cut, alike in rollouts and in serving."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trainer.data.chat import Renderer

CUT_MARK = "\n[... {} tokens cut ...]"


def cut_result(renderer: Renderer, output: str, limit: int) -> tuple[list[int], bool]:
    """Tokens of a tool's output, at most `limit` and a mark behind them that the model sees; whether it was cut."""
    ids = renderer.plain(output)
    if len(ids) <= limit:
        return ids, False
    return ids[:limit] + renderer.plain(CUT_MARK.format(len(ids) - limit)), True


def turn_structure(tools: Sequence[dict[str, Any]], response_schema: dict[str, Any] | None) -> str | None:
    """Decoding is held to (tool calls or the response format's schema) where there is one."""
    if response_schema is None:
        return None
    answer = {"type": "json_schema", "json_schema": response_schema}
    tags = [_call_tag(tool) for tool in tools]
    calls = {"type": "tags_with_separator", "tags": tags, "separator": "\n", "at_least_one": True}
    return json.dumps(
        {"type": "structural_tag", "format": {"type": "or", "elements": [calls, answer] if tags else [answer]}}
    )


def _call_tag(tool: dict[str, Any]) -> dict[str, Any]:
    """Hermes' form of one call."""
    function = tool["function"]
    return {
        "type": "tag",
        "begin": f'<tool_call>\n{{"name": "{function["name"]}", "arguments": ',
        "content": {"type": "json_schema", "json_schema": function.get("parameters") or {"type": "object"}},
        "end": "}\n</tool_call>",
    }
