"""Parsers of sampled turns: the same vLLM parsers that serve the model, so that training matches serving."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agent_rft.actors.engine.vllm_internals import chat_request_class
from agent_rft.chat.model_family import ModelFamily
from agent_rft.spec.schemas.schema_inlining import inline_references


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """Parts of a turn, as read by a parser.

    `content` is the text without calls. `calls` are (name, arguments as JSON text). `is_malformed` means that the turn
    starts a call that cannot be parsed. `reasoning` is the text of a separate reasoning message. For models that
    delimit reasoning, it is empty, because their reasoning is removed before parsing.
    """

    content: str
    calls: tuple[tuple[str, str], ...] = ()
    is_malformed: bool = False
    reasoning: str = ""


TurnParser = Callable[[str, Sequence[dict[str, Any]]], ParsedTurn]
"""Function that parses the text of a turn, given the row's tools."""


def load_parser(family: ModelFamily, tokenizer: Any) -> TurnParser:
    """Return the parser of a family's turns.

    Raises:
        ValueError: vLLM does not have the family's parser, or the model's vocabulary lacks the parser's tokens.
    """
    if family.tool_parser is None:
        return parse_answer
    if family.tool_parser == HARMONY:
        return HarmonyParser()
    try:
        return VllmParser(family, family.tool_parser, tokenizer)
    except (
        RuntimeError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
    ) as error:  # each parser raises different ones
        raise ValueError(f"vLLM's parser {family.tool_parser} does not support this model: {error}") from error


def parse_answer(text: str, tools: Sequence[dict[str, Any]]) -> ParsedTurn:
    """Parse a turn of a model that does not support tools: the full text is the answer."""
    return ParsedTurn(text)


class VllmParser:
    """Parses turns with the vLLM tool parser `name`, such as `hermes` for Qwen3 and Hermes models."""

    def __init__(self, family: ModelFamily, name: str, tokenizer: Any) -> None:
        from vllm.reasoning import ReasoningParserManager
        from vllm.tool_parsers import ToolParserManager

        # The parsers log a traceback for each malformed call, which is normal here and counted.
        logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
        self._request_class = chat_request_class()
        self._tokenizer = tokenizer
        self._requests: dict[str, Any] = {}
        self._parser_class = ToolParserManager.get_tool_parser(name)
        self._mark = family.call_mark or getattr(self._create_parser([]), "tool_call_start_token", None)
        self._reasoning_parser: Any = None
        if family.reasoning_parser is not None:
            self._reasoning_parser = ReasoningParserManager.get_reasoning_parser(family.reasoning_parser)(tokenizer)

    def __call__(self, text: str, tools: Sequence[dict[str, Any]]) -> ParsedTurn:
        started = self._mark is not None and self._mark in text
        if self._mark is not None and not started and self._reasoning_parser is None:
            return ParsedTurn(text)
        request = self._get_request(tools)
        reasoning = ""
        if self._reasoning_parser is not None:
            reasoning = self._reasoning_parser.extract_reasoning(text, request)[0] or ""
        try:
            found = self._create_parser(request.tools).extract_tool_calls(text, request)
        except Exception:  # noqa: BLE001 - the model may write anything, and each parser fails in its own way
            return ParsedTurn("", is_malformed=True, reasoning=reasoning)
        calls = tuple((call.function.name, call.function.arguments) for call in found.tool_calls)
        malformed = started and not calls
        return ParsedTurn((found.content or "") if not malformed else "", calls, malformed, reasoning)

    def _create_parser(self, tools: Any) -> Any:
        """Create a parser for one turn. Parsers have state, and some of them read argument types from `tools`."""
        return self._parser_class(self._tokenizer, tools or None)

    def _get_request(self, tools: Sequence[dict[str, Any]]) -> Any:
        """Return a vLLM request object with these tools. The objects are cached, because creating one is slow."""
        key = json.dumps(tools)
        if key not in self._requests:
            plain = [resolve_references(tool) for tool in tools]
            self._requests[key] = self._request_class(model="policy", messages=[], tools=plain or None)
        return self._requests[key]


def resolve_references(tool: dict[str, Any]) -> dict[str, Any]:
    """Return the tool with each `$ref` in its parameters replaced by its target, for parsers that read argument types.

    Returns the tool unchanged if the references are recursive.
    """
    function = tool["function"]
    if '"$ref"' not in json.dumps(function.get("parameters")):
        return tool
    parameters, _ = inline_references(function.get("parameters"), function.get("parameters"))
    return tool if parameters is None else {**tool, "function": {**function, "parameters": parameters}}


HARMONY = "openai"
"""vLLM's name for its gpt-oss parser. HarmonyParser is used instead. Both parsers are based on `openai_harmony`."""
_FUNCTIONS = "functions."


class HarmonyParser:
    """Parser for turns in OpenAI's harmony format.

    A turn consists of messages. Each message belongs to a channel, such as `analysis`.
    """

    def __init__(self) -> None:
        from openai_harmony import (  # type: ignore[import-untyped]
            HarmonyEncodingName,
            Role,
            load_harmony_encoding,
        )

        self._encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
        self._role = Role.ASSISTANT

    def __call__(self, text: str, tools: Sequence[dict[str, Any]]) -> ParsedTurn:
        tokens = self._encoding.encode(text, allowed_special="all")
        try:
            messages = self._encoding.parse_messages_from_completion_tokens(tokens, self._role, strict=False)
        except Exception:  # noqa: BLE001 - the model may write anything, and harmony raises one generic error
            return ParsedTurn("", is_malformed=True)
        texts = ["".join(getattr(part, "text", "") for part in message.content) for message in messages]
        answers, reasoning, calls = [], [], []
        for message, content in zip(messages, texts, strict=True):
            if message.recipient is not None and message.recipient.startswith(_FUNCTIONS):
                calls.append((message.recipient.removeprefix(_FUNCTIONS), content))
            elif message.channel == "analysis":
                reasoning.append(content)
            elif message.recipient is None:
                answers.append(content)
        malformed = not calls and f" to={_FUNCTIONS}" in text
        return ParsedTurn("" if malformed else "\n".join(answers), tuple(calls), malformed, "\n".join(reasoning))


def list_tool_parsers() -> list[str]:
    """Return the names of vLLM's tool parsers, which are the values of `model_options.tool_parser` other than auto."""
    from vllm.tool_parsers import ToolParserManager

    names: list[str] = ToolParserManager.list_registered()
    return names
