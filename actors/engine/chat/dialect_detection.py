"""Detection of a model's dialect by a round trip: the template renders calls, and a parser must read the same calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_rft.actors.engine.chat.turn_parsers import ParsedTurn, TurnParser, list_tool_parsers, load_parser
from agent_rft.chat.conversation import split_conversation
from agent_rft.chat.dialect import DEFAULT_DIALECT, Dialect
from agent_rft.chat.families import FAMILIES, find_family
from agent_rft.chat.model_family import ModelFamily
from agent_rft.chat.renderer import Renderer, Tokenizer
from agent_rft.chat.template import RenderFailed
from agent_rft.types import Message, ToolSchema

Call = tuple[str, dict[str, Any]]
_QUESTION: Message = {"role": "user", "content": "Where is order A 17?"}
_REASONING = "I look it up."
SHARED_MARK = "</think>"
"""Closing delimiter of reasoning in most families, so it does not identify the family of a template."""


def _make_tool(name: str, **properties: str) -> ToolSchema:
    described = {key: {"type": type, "description": key} for key, type in properties.items()}
    parameters = {"type": "object", "properties": described, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "Looks it up.", "parameters": parameters}}


ROUND_TRIP_TOOLS = (
    _make_tool("find_order", order_id="string", limit="integer"),
    _make_tool("find_rule", topic="string"),
)
ROUND_TRIP_CALLS: tuple[Call, ...] = (
    ("find_order", {"order_id": "A 17", "limit": 3}),
    ("find_rule", {"topic": 'the "return" rule'}),
)


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """Result of a round trip: a turn as rendered (`rendered_text`), and as the parser read it (`parsed_turn`).

    `problem` is the difference between them; None if the parser read the same calls and reasoning.
    """

    rendered_text: str
    parsed_turn: ParsedTurn
    problem: str | None


def run_round_trip(
    renderer: Renderer, parse: TurnParser, tools: Sequence[ToolSchema], calls: Sequence[Call], reasoning: str = ""
) -> RoundTrip:
    """Render a turn with these calls, and parse the tokens that a model would sample for the turn.

    Raises:
        ValueError: The template cannot render the turn.
    """
    turn: Message = {"role": "assistant", "content": "", "tool_calls": [_to_message_call(*call) for call in calls]}
    if reasoning:
        turn["reasoning_content"] = reasoning
    (sample,) = split_conversation(renderer, [_QUESTION, turn], tools)
    sampled = [token for token, trained in zip(sample.token_ids, sample.mask, strict=True) if trained]
    length = renderer.count_reasoning(sampled)
    text = renderer.decode_turn(sampled[length:])
    read = parse(text, tools)
    read_reasoning = renderer.decode_reasoning(sampled[:length]) if length else read.reasoning
    difference = None
    if [(name, _parse_json(arguments)) for name, arguments in read.calls] != list(calls):
        difference = "different calls" if read.calls else "no calls"
    elif reasoning and renderer.template_format.reasoning_field is not None and read_reasoning.strip() != reasoning:
        difference = f"the reasoning {read_reasoning.strip()!r}"
    return RoundTrip(renderer.decode_turn(sampled), read, difference)


def find_problem(renderer: Renderer, parse: TurnParser) -> str | None:
    """Return why `parse` cannot read the calls that the template renders; None if it can.

    Tries one call, two calls if the template allows several per turn, and one call with reasoning.
    """
    numbers = (1, 2) if renderer.template_format.takes_several_calls else (1,)
    try:
        for number in numbers:
            trip = run_round_trip(renderer, parse, ROUND_TRIP_TOOLS, ROUND_TRIP_CALLS[:number])
            if trip.problem is not None:
                text = _shorten(trip.rendered_text)
                return f"a turn that contains {number} call(s) was parsed as {trip.problem}: {text}"
        if renderer.reasoning_mode != "none":
            trip = run_round_trip(renderer, parse, ROUND_TRIP_TOOLS, ROUND_TRIP_CALLS[:1], _REASONING)
            if trip.problem is not None:
                text = _shorten(trip.rendered_text)
                return f"a turn that contains reasoning and a call was parsed as {trip.problem}: {text}"
    except (RenderFailed, ValueError) as error:
        if isinstance(error, RenderFailed) and error.kind not in ("raised", "failed"):
            raise
        return f"the template fails: {_shorten(str(error))}"
    return None


def find_unread_names(renderer: Renderer, names: Sequence[str]) -> list[str]:
    """Return the tool names whose calls the model's parser cannot read, although it can read calls of other tools.

    Returns no names if the parser cannot read any calls.
    """
    try:
        parse = load_parser(renderer.family, renderer.tokenizer)
    except ValueError:  # reported elsewhere
        return []

    def can_read(name: str) -> bool:
        try:
            return (
                run_round_trip(renderer, parse, (_make_tool(name, topic="string"),), ((name, {"topic": "x"}),)).problem
                is None
            )
        except (RenderFailed, ValueError):
            return False

    return [name for name in names if not can_read(name)] if names and can_read(ROUND_TRIP_CALLS[1][0]) else []


def find_dialect(tokenizer: Tokenizer, requested: Dialect, tool_parser: str = "auto") -> tuple[Renderer, str | None]:
    """Return a renderer with the model's dialect, and a problem or None.

    The problem explains why no parser can read the model's tool calls. The dialect is then the most likely one, and
    the caller should use `without_tools_renderer`. `requested` contains the user's template, arguments and stop tokens.
    If `tool_parser` is auto, all parsers are tried.

    Raises:
        RenderFailed: The template is not valid Jinja, or costs too much to render.
    """
    likely: tuple[Renderer, str] | None = None
    for name in _candidates() if tool_parser == "auto" else (tool_parser,):
        family = find_family(name)
        renderer = Renderer(tokenizer, replace(requested, family=family.name, tool_parser=name))
        difference: str | None = "the template does not render calls"
        if renderer.template_format.renders_calls or tool_parser != "auto" or renderer.has_token(family.call_mark):
            difference = _find_problem(renderer, tokenizer)
        if difference is None:
            return _resolve_dialect(renderer), None
        if likely is None or _contains_mark(renderer.template, family):
            likely = renderer, difference
    assert likely is not None
    return _resolve_dialect(likely[0]), likely[1]


def without_tools_renderer(renderer: Renderer) -> Renderer | None:
    """Return a renderer that treats every turn as an answer, for a model whose calls no parser can read.

    The renderer finds reasoning by the delimiters of the model family that the chat template belongs to. Returns None
    if this family writes a turn as several messages, because only the family's parser can separate the messages.
    """
    family = renderer.family
    if family.reasoning_parser is not None:
        return None
    name = family.name if _contains_mark(renderer.template, family) else DEFAULT_DIALECT.family
    return _resolve_dialect(Renderer(renderer.tokenizer, replace(renderer.dialect, family=name, tool_parser=None)))


def _contains_mark(template: str, family: ModelFamily) -> bool:
    """Return whether a template contains the family's call mark, or a reasoning mark that only this family uses."""
    closing = family.reasoning_delimiters[1]
    marks = (family.call_mark or family.tool_parser, None if closing == SHARED_MARK else closing)
    return any(mark is not None and mark in template for mark in marks)


def _resolve_dialect(renderer: Renderer) -> Renderer:
    """Return a renderer whose dialect contains all detected values, so that they need not be detected again."""
    marks = renderer.reasoning_delimiters if renderer.reasoning_end_id is not None else None
    ends = tuple(renderer.stop_tokens.values())
    return Renderer(renderer.tokenizer, replace(renderer.dialect, stop_tokens=ends, reasoning_delimiters=marks))


def _find_problem(renderer: Renderer, tokenizer: Tokenizer) -> str | None:
    try:
        return find_problem(renderer, load_parser(renderer.family, tokenizer))
    except ValueError as error:
        return str(error)


def _candidates() -> Iterator[str]:
    known = [family.tool_parser for family in FAMILIES if family.tool_parser is not None]
    yield from known
    yield from (name for name in list_tool_parsers() if name not in known)


def _to_message_call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(arguments, ensure_ascii=False)
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": text}}


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _shorten(text: str) -> str:
    line = repr(text)
    return line if len(line) <= 300 else f"{line[:300]}..."
