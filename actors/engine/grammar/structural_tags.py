"""Structural tags that constrain the decoding of a turn, the same in rollouts and in serving."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agent_rft.actors.engine.grammar.literal_arguments import LITERAL_STYLES, build_literal_format
from agent_rft.actors.engine.grammar.tagged_arguments import ARGUMENT_TAGS, build_tagged_format
from agent_rft.chat.model_family import CallSyntax, MessageSyntax, ModelFamily
from agent_rft.chat.renderer import Renderer

LINE_BREAKS: dict[str, Any] = {"type": "regex", "pattern": "\\n{0,2}"}
"""Line breaks that templates put around reasoning and after calls."""


class GrammarUnavailable(ValueError):
    """The format that the model should write has no grammar."""


def reasoning_format(renderer: Renderer, max_tokens: int | None) -> dict[str, Any] | None:
    """Return the format of a turn's reasoning, of at most `max_tokens`; None if turns have no reasoning.

    Reasoning delimiters are matched as tokens, never as text that looks like them, as everywhere else. The delimiters
    of messages are matched as text, because the parsers of such families read text.
    """
    if (form := renderer.family.messages) is not None:
        return _reasoning_message(form, max_tokens)
    if renderer.reasoning_mode == "none":
        return None
    start, end = ({"type": "token", "token": token} for token in renderer.reasoning_token_ids)
    free: dict[str, Any] = {"type": "any_tokens", "exclude_tokens": list(renderer.reasoning_token_ids)}
    if max_tokens is not None:
        free["max_tokens"] = max_tokens
    if renderer.reasoning_mode == "opened":
        return {"type": "sequence", "elements": [free, end, LINE_BREAKS]}
    tag = {"type": "tag", "begin": start, "content": free, "end": end}
    return {"type": "sequence", "elements": [LINE_BREAKS, {"type": "optional", "content": tag}, LINE_BREAKS]}


def _reasoning_message(form: MessageSyntax, max_tokens: int | None) -> dict[str, Any]:
    begin, end = form.reasoning
    content: dict[str, Any] = {"type": "any_text", "excludes": list(form.excluded)}
    if max_tokens is not None:
        content["max_tokens"] = max_tokens
    return {"type": "optional", "content": {"type": "tag", "begin": begin, "content": content, "end": end}}


def find_grammar_problem(family: ModelFamily, *, calls: bool) -> str | None:
    """Return why turns of a family, with or without calls, cannot be constrained; None if they can."""
    if family.reasoning_parser is not None and family.messages is None:
        return f"turns of the model family {family.name} cannot be constrained to a schema"
    if calls and not family.calls:
        return f"tool calls of the model family {family.name} cannot be constrained to a schema"
    return None


def build_structure(
    renderer: Renderer,
    tools: Sequence[dict[str, Any]],
    response_schema: dict[str, Any] | None,
    max_reasoning_tokens: int | None,
) -> str | None:
    """Return the structural tag of a turn in the model's dialect; None without a response schema.

    Raises:
        GrammarUnavailable: The family's turns or calls cannot be constrained.
    """
    if response_schema is None:
        return None
    if (problem := find_grammar_problem(renderer.family, calls=bool(tools))) is not None:
        raise GrammarUnavailable(problem)
    family, reasoning = renderer.family, reasoning_format(renderer, max_reasoning_tokens)
    before = "" if family.messages is None else family.messages.answer
    return build_turn_structure(tools, response_schema, renderer.template_format.calls, reasoning, before)


def build_turn_structure(
    tools: Sequence[dict[str, Any]],
    response_schema: dict[str, Any],
    form: CallSyntax | None,
    reasoning: dict[str, Any] | None = None,
    before_answer: str = "",
) -> str:
    """Return the structural tag of a turn: optional reasoning, then tool calls or an answer.

    Calls have the family's format. The answer matches the response schema and follows the text `before_answer`.

    Raises:
        GrammarUnavailable: There are tools, but the format of calls is unknown.
    """
    content: dict[str, Any] = {"type": "json_schema", "json_schema": response_schema}
    if before_answer:
        content = {"type": "sequence", "elements": [_const_string(before_answer), content]}
    if tools:
        if form is None:
            raise GrammarUnavailable("the format of the model's tool calls is unknown")
        content = {"type": "or", "elements": [_calls_format(tools, form), content]}
    return _structural_tag(reasoning, content)


def require_calls(
    renderer: Renderer, tools: Sequence[dict[str, Any]], max_reasoning_tokens: int | None, *, one_call: bool
) -> str | None:
    """Return the structural tag of a turn that must call tools; None if the format of calls is unknown.

    `one_call` allows a single call only.
    """
    form = renderer.template_format.calls
    if form is None:
        return None
    return _structural_tag(reasoning_format(renderer, max_reasoning_tokens), _calls_format(tools, form, alone=one_call))


def _structural_tag(reasoning: dict[str, Any] | None, content: dict[str, Any]) -> str:
    turn = content if reasoning is None else {"type": "sequence", "elements": [reasoning, content]}
    return json.dumps({"type": "structural_tag", "format": turn})


def forbid_calls(family: ModelFamily) -> str | None:
    """Return the structural tag of a turn without calls; otherwise a forbidden call would be returned as text."""
    if family.call_mark is None:
        return None
    return json.dumps({"type": "structural_tag", "format": {"type": "any_text", "excludes": [family.call_mark]}})


def _calls_format(tools: Sequence[dict[str, Any]], form: CallSyntax, *, alone: bool = False) -> dict[str, Any]:
    tags = [_call_tag(tool, form, begin) for tool in tools for begin in (form.begin, *form.also)]
    calls = {"type": "tags_with_separator", "tags": tags, "separator": form.separator or "", "at_least_one": True}
    calls["stop_after_first"] = alone or form.separator is None
    return {"type": "sequence", "elements": [_const_string(form.before), calls, _const_string(form.after), LINE_BREAKS]}


def _const_string(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _call_tag(tool: dict[str, Any], form: CallSyntax, begin: str) -> dict[str, Any]:
    function = tool["function"]
    schema = function.get("parameters") or {"type": "object"}
    if (literals := LITERAL_STYLES.get(form.style)) is not None:
        content = build_literal_format(schema, literals)
    elif (tags := ARGUMENT_TAGS.get(form.style)) is not None:
        content = build_tagged_format(schema, tags)
    else:
        style = {} if form.style == "json" else {"style": form.style}
        content = {"type": "json_schema", "json_schema": schema, **style}
    around = [[{"type": "regex", "pattern": pattern}] if pattern else [] for pattern in (form.head, form.tail)]
    if any(around):
        content = {"type": "sequence", "elements": [*around[0], content, *around[1]]}
    return {"type": "tag", "begin": begin.format(name=function["name"]), "content": content, "end": form.end}
