"""Structural tags, xgrammar's JSON format for grammars, that constrain decoding in rollouts and serving."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agent_rft.actors.engine.grammar.literal_arguments import LITERAL_STYLES, build_literal_format
from agent_rft.actors.engine.grammar.tagged_arguments import ARGUMENT_TAGS, build_tagged_format
from agent_rft.chat.model_family import CallSyntax, MessageSyntax, ModelFamily
from agent_rft.chat.renderer import Renderer

LINE_BREAKS: dict[str, Any] = {"type": "regex", "pattern": "\\n{0,2}"}
"""xgrammar format of the line breaks that templates put around reasoning and after calls."""


class GrammarUnavailable(ValueError):
    """There is no grammar for the format in which the model should write a turn."""


def build_reasoning_format(renderer: Renderer, max_tokens: int | None) -> dict[str, Any] | None:
    """Return the xgrammar format of a turn's reasoning; None if turns have no reasoning.

    Reasoning has at most `max_tokens` tokens; None: no limit. Reasoning delimiters are matched as tokens, so text that
    looks like a delimiter does not match. Families that write reasoning as a separate message are an exception: the
    strings before and after the message are matched as text, as in the parsers of these families.
    """
    if (syntax := renderer.family.message_syntax) is not None:
        return _reasoning_message(syntax, max_tokens)
    if renderer.reasoning_mode == "none":
        return None
    start, end = ({"type": "token", "token": token} for token in renderer.reasoning_token_ids)
    any_tokens: dict[str, Any] = {"type": "any_tokens", "exclude_tokens": list(renderer.reasoning_token_ids)}
    if max_tokens is not None:
        any_tokens["max_tokens"] = max_tokens
    if renderer.reasoning_mode == "opened":
        return {"type": "sequence", "elements": [any_tokens, end, LINE_BREAKS]}
    tag = {"type": "tag", "begin": start, "content": any_tokens, "end": end}
    return {"type": "sequence", "elements": [LINE_BREAKS, {"type": "optional", "content": tag}, LINE_BREAKS]}


def _reasoning_message(syntax: MessageSyntax, max_tokens: int | None) -> dict[str, Any]:
    begin, end = syntax.around_reasoning
    content: dict[str, Any] = {"type": "any_text", "excludes": list(syntax.excluded_texts)}
    if max_tokens is not None:
        content["max_tokens"] = max_tokens
    return {"type": "optional", "content": {"type": "tag", "begin": begin, "content": content, "end": end}}


def find_grammar_problem(family: ModelFamily, *, calls: bool) -> str | None:
    """Return why no grammar can constrain the turns of a family; None if a grammar can.

    `calls` is whether the turns may contain tool calls.
    """
    if family.reasoning_parser is not None and family.message_syntax is None:
        return f"turns of the model family {family.name} cannot be constrained to a schema"
    if calls and not family.call_syntaxes:
        return f"tool calls of the model family {family.name} cannot be constrained to a schema"
    return None


def build_structure(
    renderer: Renderer,
    tools: Sequence[dict[str, Any]],
    response_schema: dict[str, Any] | None,
    max_reasoning_tokens: int | None,
) -> str | None:
    """Return the structural tag that constrains a turn to tool calls or to an answer that matches the schema.

    Returns None if `response_schema` is None.

    Raises:
        GrammarUnavailable: No grammar can constrain turns or calls of the model's family.
    """
    if response_schema is None:
        return None
    if (problem := find_grammar_problem(renderer.family, calls=bool(tools))) is not None:
        raise GrammarUnavailable(problem)
    family, reasoning = renderer.family, build_reasoning_format(renderer, max_reasoning_tokens)
    before = "" if family.message_syntax is None else family.message_syntax.before_answer
    return build_turn_structure(tools, response_schema, renderer.template_format.call_syntax, reasoning, before)


def build_turn_structure(
    tools: Sequence[dict[str, Any]],
    response_schema: dict[str, Any],
    syntax: CallSyntax | None,
    reasoning: dict[str, Any] | None = None,
    before_answer: str = "",
) -> str:
    """Return the structural tag of a turn: optional reasoning, then tool calls or an answer.

    `reasoning` is the xgrammar format of the reasoning. Calls have the syntax `syntax`. The answer matches the response
    schema and follows the text `before_answer`.

    Raises:
        GrammarUnavailable: There are tools, but the syntax of calls is unknown.
    """
    content: dict[str, Any] = {"type": "json_schema", "json_schema": response_schema}
    if before_answer:
        content = {"type": "sequence", "elements": [_const_string(before_answer), content]}
    if tools:
        if syntax is None:
            raise GrammarUnavailable("the format of the model's tool calls is unknown")
        content = {"type": "or", "elements": [_build_calls_format(tools, syntax), content]}
    return _structural_tag(reasoning, content)


def build_required_calls_structure(
    renderer: Renderer, tools: Sequence[dict[str, Any]], max_reasoning_tokens: int | None, *, one_call: bool
) -> str | None:
    """Return the structural tag of a turn that must call tools; None if the syntax of calls is unknown.

    With `one_call`, the turn must contain exactly one call.
    """
    syntax = renderer.template_format.call_syntax
    if syntax is None:
        return None
    return _structural_tag(
        build_reasoning_format(renderer, max_reasoning_tokens), _build_calls_format(tools, syntax, one_call=one_call)
    )


def _structural_tag(reasoning: dict[str, Any] | None, content: dict[str, Any]) -> str:
    turn = content if reasoning is None else {"type": "sequence", "elements": [reasoning, content]}
    return json.dumps({"type": "structural_tag", "format": turn})


def build_no_calls_structure(family: ModelFamily) -> str | None:
    """Return the structural tag of a turn without calls; None if the family has no `call_mark`.

    The tag forbids the text that marks a call. Without the tag, the model could write a call although the client
    forbids calls, and the client would get the call as text.
    """
    if family.call_mark is None:
        return None
    return json.dumps({"type": "structural_tag", "format": {"type": "any_text", "excludes": [family.call_mark]}})


def _build_calls_format(
    tools: Sequence[dict[str, Any]], syntax: CallSyntax, *, one_call: bool = False
) -> dict[str, Any]:
    tags = [_build_call_tag(tool, syntax, begin) for tool in tools for begin in (syntax.begin, *syntax.other_begins)]
    calls = {"type": "tags_with_separator", "tags": tags, "separator": syntax.separator or "", "at_least_one": True}
    calls["stop_after_first"] = one_call or syntax.separator is None
    return {
        "type": "sequence",
        "elements": [_const_string(syntax.before_calls), calls, _const_string(syntax.after_calls), LINE_BREAKS],
    }


def _const_string(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _build_call_tag(tool: dict[str, Any], syntax: CallSyntax, begin: str) -> dict[str, Any]:
    function = tool["function"]
    schema = function.get("parameters") or {"type": "object"}
    if (literals := LITERAL_STYLES.get(syntax.argument_style)) is not None:
        content = build_literal_format(schema, literals)
    elif (tags := ARGUMENT_TAGS.get(syntax.argument_style)) is not None:
        content = build_tagged_format(schema, tags)
    else:
        style = {} if syntax.argument_style == "json" else {"style": syntax.argument_style}
        content = {"type": "json_schema", "json_schema": schema, **style}
    around = [
        [{"type": "regex", "pattern": pattern}] if pattern else []
        for pattern in (syntax.head_pattern, syntax.tail_pattern)
    ]
    if any(around):
        content = {"type": "sequence", "elements": [*around[0], content, *around[1]]}
    return {"type": "tag", "begin": begin.format(name=function["name"]), "content": content, "end": syntax.end}
