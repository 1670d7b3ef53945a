"""Parses the tool calls of a sampled turn with the parsers that vLLM serves with: what is trained is what is served."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A parsed turn: `calls` are (name, arguments as JSON text); `malformed` if a call was started but is invalid.

    `thought` is without its marks.
    """

    content: str
    calls: tuple[tuple[str, str], ...] = ()
    malformed: bool = False
    thought: str = ""


TurnParser = Callable[[str, Sequence[dict[str, Any]]], ParsedTurn]
"""A turn's text and the row's tools -> what the text says."""


class VllmParser:
    """One of vLLM's parsers, by its registered name (`hermes` is that of Qwen and Hermes models)."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager

        # The parsers log a traceback for each malformed call; here that is normal, and counted.
        logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
        self._parser_class = ToolParserManager.get_tool_parser(name)
        self._request_class = ChatCompletionRequest
        self._tokenizer = tokenizer
        self._requests: dict[str, Any] = {}

    def __call__(self, text: str, tools: Sequence[dict[str, Any]]) -> ParsedTurn:
        parser = self._parser_class(self._tokenizer)
        start = getattr(parser, "tool_call_start_token", None)
        if start is not None and start not in text:
            return ParsedTurn(text)
        found = parser.extract_tool_calls(text, self._request_with(tools))
        calls = tuple((call.function.name, call.function.arguments) for call in found.tool_calls)
        malformed = not calls and start is not None and start in text
        return ParsedTurn((found.content or "") if not malformed else "", calls, malformed)

    def _request_with(self, tools: Sequence[dict[str, Any]]) -> Any:
        """A cached request with these tools, from which some parsers read argument types; creating one is slow."""
        key = json.dumps(tools)
        if key not in self._requests:
            self._requests[key] = self._request_class(model="policy", messages=[], tools=list(tools) or None)
        return self._requests[key]


def tool_parser_names() -> list[str]:
    """The valid values of `cluster.tool_parser`."""
    from vllm.tool_parsers import ToolParserManager

    return sorted({*ToolParserManager.tool_parsers, *ToolParserManager.lazy_parsers})
