"""The form of a turn, the same in rollouts and in serving: constrained decoding, and tool results that are cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trainer.chat.family import CallForm, Family
from trainer.chat.renderer import Renderer

CUT_MARK = "\n[... {} tokens cut ...]"


def cut_result(renderer: Renderer, output: str, limit: int) -> tuple[list[int], bool]:
    """The tokens of a tool's output, cut at `limit` with a mark that the model sees, and whether it was cut."""
    ids = renderer.result(output)
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
    tools: Sequence[dict[str, Any]],
    response_schema: dict[str, Any] | None,
    form: CallForm | None,
    thought: dict[str, Any] | None = None,
) -> str | None:
    """The structural tag of a turn; None without a response schema.

    It is a thought, if there is a format for it, and then tool calls in the family's form or an answer of the response
    schema.

    Raises:
        ValueError: there are tools, but no form of calls.
    """
    if response_schema is None:
        return None
    said: dict[str, Any] = {"type": "json_schema", "json_schema": response_schema}
    if tools:
        if form is None:
            raise ValueError("this model family's calls have no grammar")
        tags = [_call_tag(tool, form) for tool in tools]
        separator = {"separator": form.separator, "at_least_one": True}
        said = {"type": "or", "elements": [{"type": "tags_with_separator", "tags": tags, **separator}, said]}
    whole = said if thought is None else {"type": "sequence", "elements": [thought, said]}
    return json.dumps({"type": "structural_tag", "format": whole})


def no_calls(family: Family) -> str | None:
    """The structural tag of a turn without calls: else a forbidden call would be returned as text."""
    if family.call_mark is None:
        return None
    return json.dumps({"type": "structural_tag", "format": {"type": "any_text", "excludes": [family.call_mark]}})


def _call_tag(tool: dict[str, Any], form: CallForm) -> dict[str, Any]:
    function = tool["function"]
    schema = function.get("parameters") or {"type": "object"}
    content = {"type": "json_schema", "json_schema": schema} | ({} if form.style == "json" else {"style": form.style})
    return {"type": "tag", "begin": form.begin.format(name=function["name"]), "content": content, "end": form.end}
