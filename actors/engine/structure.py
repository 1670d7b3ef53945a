"""The form of a turn, the same in rollouts and in serving: constrained decoding, and tool results that are cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trainer.chat.renderer import Renderer

CUT_MARK = "\n[... {} tokens cut ...]"


def cut_result(renderer: Renderer, output: str, limit: int) -> tuple[list[int], bool]:
    """The tokens of a tool's output, cut at `limit` with a mark that the model sees, and whether it was cut."""
    ids = renderer.plain(output)
    if len(ids) <= limit:
        return ids, False
    return ids[:limit] + renderer.plain(CUT_MARK.format(len(ids) - limit)), True


def thought_structure(renderer: Renderer, max_tokens: int | None) -> dict[str, Any] | None:
    """The format of a turn's thought, of at most `max_tokens`; None if the model has none, or not in this template.

    Its marks are tokens, never text that looks like them, as wherever thoughts are separated from answers.
    """
    if renderer.thought == "none":
        return None
    start, end = ({"type": "token", "token": token} for token in renderer.thought_marks)
    free: dict[str, Any] = {"type": "any_tokens", "exclude_tokens": list(renderer.thought_marks)}
    if max_tokens is not None:
        free["max_tokens"] = max_tokens
    if renderer.thought == "opened":
        return {"type": "sequence", "elements": [free, end]}
    return {"type": "optional", "content": {"type": "tag", "begin": start, "content": free, "end": end}}


def turn_structure(
    tools: Sequence[dict[str, Any]], response_schema: dict[str, Any] | None, thought: dict[str, Any] | None = None
) -> str | None:
    """The structural tag of a turn; None without a response schema.

    It is a thought, if there is a format for it, and then tool calls or an answer of the response schema.
    """
    if response_schema is None:
        return None
    answer = {"type": "json_schema", "json_schema": response_schema}
    tags = [_call_tag(tool) for tool in tools]
    calls = {"type": "tags_with_separator", "tags": tags, "separator": "\n", "at_least_one": True}
    said = {"type": "or", "elements": [calls, answer] if tags else [answer]}
    whole = said if thought is None else {"type": "sequence", "elements": [thought, said]}
    return json.dumps({"type": "structural_tag", "format": whole})


def _call_tag(tool: dict[str, Any]) -> dict[str, Any]:
    """The tag of a call in the Hermes format."""
    function = tool["function"]
    return {
        "type": "tag",
        "begin": f'<tool_call>\n{{"name": "{function["name"]}", "arguments": ',
        "content": {"type": "json_schema", "json_schema": function.get("parameters") or {"type": "object"}},
        "end": "}\n</tool_call>",
    }
