"""The form of a turn as constrained decoding, the same in rollouts and in serving."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agent_rft.actors.engine.grammar.literals import STYLES, arguments_format
from agent_rft.actors.engine.grammar.parameters import TAGS, parameters_format
from agent_rft.chat.family import CallForm, Family, MessageForm
from agent_rft.chat.renderer import Renderer

LINES: dict[str, Any] = {"type": "regex", "pattern": "\\n{0,2}"}
"""What templates put around thoughts and after calls."""


class NoGrammar(ValueError):
    """The form of what a model should write is not known as a grammar."""


def thought_structure(renderer: Renderer, max_tokens: int | None) -> dict[str, Any] | None:
    """The format of a turn's thought, of at most `max_tokens`; None if the model has none, or not in this template.

    Its marks are tokens, never text that looks like them, as wherever thoughts are separated from answers; those of
    messages are text, since their parsers read text.
    """
    if (form := renderer.family.messages) is not None:
        return _thought_message(form, max_tokens)
    if renderer.thought == "none":
        return None
    start, end = ({"type": "token", "token": token} for token in renderer.thought_marks)
    free: dict[str, Any] = {"type": "any_tokens", "exclude_tokens": list(renderer.thought_marks)}
    if max_tokens is not None:
        free["max_tokens"] = max_tokens
    if renderer.thought == "opened":
        return {"type": "sequence", "elements": [free, end, LINES]}
    tag = {"type": "tag", "begin": start, "content": free, "end": end}
    return {"type": "sequence", "elements": [LINES, {"type": "optional", "content": tag}, LINES]}


def _thought_message(form: MessageForm, max_tokens: int | None) -> dict[str, Any]:
    begin, end = form.thought
    said: dict[str, Any] = {"type": "any_text", "excludes": list(form.excluded)}
    if max_tokens is not None:
        said["max_tokens"] = max_tokens
    return {"type": "optional", "content": {"type": "tag", "begin": begin, "content": said, "end": end}}


def grammar_mistake(family: Family, *, calls: bool) -> str | None:
    """Why turns of a family, with or without calls, cannot be constrained; None if they can."""
    if family.reasoning_parser is not None and family.messages is None:
        return f"there is no grammar for the turns of the model family {family.name}"
    if calls and not family.calls:
        return f"there is no grammar for the calls of the model family {family.name}"
    return None


def structure_of(
    renderer: Renderer,
    tools: Sequence[dict[str, Any]],
    response_schema: dict[str, Any] | None,
    max_thinking_tokens: int | None,
) -> str | None:
    """The structural tag of a turn in the model's dialect; None without a response schema.

    Raises:
        NoGrammar: The family's form is not known.
    """
    if response_schema is None:
        return None
    if (mistake := grammar_mistake(renderer.family, calls=bool(tools))) is not None:
        raise NoGrammar(mistake)
    family, thought = renderer.family, thought_structure(renderer, max_thinking_tokens)
    before = "" if family.messages is None else family.messages.answer
    return turn_structure(tools, response_schema, renderer.form.calls, thought, before)


def turn_structure(
    tools: Sequence[dict[str, Any]],
    response_schema: dict[str, Any],
    form: CallForm | None,
    thought: dict[str, Any] | None = None,
    before_answer: str = "",
) -> str:
    """Return the structural tag of a turn.

    It is a thought, if there is a format for it, and then tool calls in the family's form or an answer of the response
    schema, after the text `before_answer`.

    Raises:
        NoGrammar: There are tools, but no form of calls.
    """
    said: dict[str, Any] = {"type": "json_schema", "json_schema": response_schema}
    if before_answer:
        said = {"type": "sequence", "elements": [_text(before_answer), said]}
    if tools:
        if form is None:
            raise NoGrammar("there is no form of calls")
        said = {"type": "or", "elements": [_calls(tools, form), said]}
    return _tag(thought, said)


def required_calls(
    renderer: Renderer, tools: Sequence[dict[str, Any]], max_thinking_tokens: int | None, *, alone: bool
) -> str | None:
    """The structural tag of a turn that calls some of these tools, or one only; None if there is no form of calls."""
    form = renderer.form.calls
    if form is None:
        return None
    return _tag(thought_structure(renderer, max_thinking_tokens), _calls(tools, form, alone=alone))


def _tag(thought: dict[str, Any] | None, said: dict[str, Any]) -> str:
    whole = said if thought is None else {"type": "sequence", "elements": [thought, said]}
    return json.dumps({"type": "structural_tag", "format": whole})


def no_calls(family: Family) -> str | None:
    """The structural tag of a turn without calls: else a forbidden call would be returned as text."""
    if family.call_mark is None:
        return None
    return json.dumps({"type": "structural_tag", "format": {"type": "any_text", "excludes": [family.call_mark]}})


def _calls(tools: Sequence[dict[str, Any]], form: CallForm, *, alone: bool = False) -> dict[str, Any]:
    tags = [_call_tag(tool, form, begin) for tool in tools for begin in (form.begin, *form.also)]
    calls = {"type": "tags_with_separator", "tags": tags, "separator": form.separator or "", "at_least_one": True}
    calls["stop_after_first"] = alone or form.separator is None
    return {"type": "sequence", "elements": [_text(form.before), calls, _text(form.after), LINES]}


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _call_tag(tool: dict[str, Any], form: CallForm, begin: str) -> dict[str, Any]:
    function = tool["function"]
    schema = function.get("parameters") or {"type": "object"}
    if (literals := STYLES.get(form.style)) is not None:
        content = arguments_format(schema, literals)
    elif (tags := TAGS.get(form.style)) is not None:
        content = parameters_format(schema, tags)
    else:
        style = {} if form.style == "json" else {"style": form.style}
        content = {"type": "json_schema", "json_schema": schema, **style}
    around = [[{"type": "regex", "pattern": pattern}] if pattern else [] for pattern in (form.head, form.tail)]
    if any(around):
        content = {"type": "sequence", "elements": [*around[0], content, *around[1]]}
    return {"type": "tag", "begin": begin.format(name=function["name"]), "content": content, "end": form.end}
