"""Reads the tool calls of a sampled turn with the parsers that vLLM serves with: what is trained is what is served."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agent_rft.actors.engine.vllm_internals import chat_request_class
from agent_rft.chat.family import Family
from agent_rft.spec.schemas.inline import inlined


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A parsed turn: `calls` are (name, arguments as JSON text); `malformed` if a call was started but is invalid.

    `thought` is one that is a message of its own; the parsed text has none between marks.
    """

    content: str
    calls: tuple[tuple[str, str], ...] = ()
    malformed: bool = False
    thought: str = ""


TurnParser = Callable[[str, Sequence[dict[str, Any]]], ParsedTurn]
"""A turn's text and the row's tools -> what the text says."""


def parser_of(family: Family, tokenizer: Any) -> TurnParser:
    """Return the parser of a family's turns.

    Raises:
        ValueError: vLLM has no parser of that name, or the model's vocabulary lacks the parser's tokens.
    """
    if family.tool_parser is None:
        return read_answer
    if family.tool_parser == HARMONY:
        return HarmonyParser()
    try:
        return VllmParser(family, family.tool_parser, tokenizer)
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:  # each parser has its own
        raise ValueError(f"vLLM's parser {family.tool_parser} cannot read this model: {error}") from error


def read_answer(text: str, tools: Sequence[dict[str, Any]]) -> ParsedTurn:
    """Read a turn of a model that works without tools only: all of its text is the answer."""
    return ParsedTurn(text)


class VllmParser:
    """One of vLLM's parsers, by its registered `name` (`hermes` reads Qwen3 and Hermes models)."""

    def __init__(self, family: Family, name: str, tokenizer: Any) -> None:
        from vllm.reasoning import ReasoningParserManager
        from vllm.tool_parsers import ToolParserManager

        # The parsers log a traceback for each malformed call; here that is normal, and counted.
        logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
        self._request_class = chat_request_class()
        self._tokenizer = tokenizer
        self._requests: dict[str, Any] = {}
        self._parser_class = ToolParserManager.get_tool_parser(name)
        self._mark = family.call_mark or getattr(self._new([]), "tool_call_start_token", None)
        self._thoughts: Any = None
        if family.reasoning_parser is not None:
            self._thoughts = ReasoningParserManager.get_reasoning_parser(family.reasoning_parser)(tokenizer)

    def __call__(self, text: str, tools: Sequence[dict[str, Any]]) -> ParsedTurn:
        started = self._mark is not None and self._mark in text
        if self._mark is not None and not started and self._thoughts is None:
            return ParsedTurn(text)
        request = self._request_with(tools)
        thought = ""
        if self._thoughts is not None:
            thought = self._thoughts.extract_reasoning(text, request)[0] or ""
        try:
            found = self._new(request.tools).extract_tool_calls(text, request)
        except Exception:  # noqa: BLE001 - the model may write anything, and each parser fails in its own way
            return ParsedTurn("", malformed=True, thought=thought)
        calls = tuple((call.function.name, call.function.arguments) for call in found.tool_calls)
        malformed = started and not calls
        return ParsedTurn((found.content or "") if not malformed else "", calls, malformed, thought)

    def _new(self, tools: Any) -> Any:
        """A parser for one turn: it has a state. Some take argument types from the tools."""
        return self._parser_class(self._tokenizer, tools or None)

    def _request_with(self, tools: Sequence[dict[str, Any]]) -> Any:
        """A cached request with these tools; creating one is slow."""
        key = json.dumps(tools)
        if key not in self._requests:
            plain = [without_references(tool) for tool in tools]
            self._requests[key] = self._request_class(model="policy", messages=[], tools=plain or None)
        return self._requests[key]


def without_references(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool with what its parameters refer to written out, for parsers that look for types; as it is if endless."""
    function = tool["function"]
    if '"$ref"' not in json.dumps(function.get("parameters")):
        return tool
    parameters, _ = inlined(function.get("parameters"), function.get("parameters"))
    return tool if parameters is None else {**tool, "function": {**function, "parameters": parameters}}


HARMONY = "openai"
"""vLLM's name for the parser of gpt-oss, which it reads with `openai_harmony`, as here."""
_FUNCTIONS = "functions."


class HarmonyParser:
    """Reads turns in OpenAI's harmony format, in which a turn is several messages on channels."""

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
        except Exception:  # noqa: BLE001 - the model may write anything; harmony has one class of error for it all
            return ParsedTurn("", malformed=True)
        texts = ["".join(getattr(part, "text", "") for part in message.content) for message in messages]
        said, thoughts, calls = [], [], []
        for message, content in zip(messages, texts, strict=True):
            if message.recipient is not None and message.recipient.startswith(_FUNCTIONS):
                calls.append((message.recipient.removeprefix(_FUNCTIONS), content))
            elif message.channel == "analysis":
                thoughts.append(content)
            elif message.recipient is None:
                said.append(content)
        malformed = not calls and f" to={_FUNCTIONS}" in text
        return ParsedTurn("" if malformed else "\n".join(said), tuple(calls), malformed, "\n".join(thoughts))


def tool_parser_names() -> list[str]:
    """The valid values of `model_options.tool_parser`, beside auto."""
    from vllm.tool_parsers import ToolParserManager

    names: list[str] = ToolParserManager.list_registered()
    return names
