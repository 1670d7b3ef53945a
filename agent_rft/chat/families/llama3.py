"""Llama 3.1 to 3.3: a turn consists of one JSON call, with `parameters`."""

from __future__ import annotations

from agent_rft.chat.model_family import CallSyntax, ModelFamily

LLAMA3 = ModelFamily(
    name="llama3",
    tool_parser="llama3_json",
    calls=(CallSyntax('{{"name": "{name}", "parameters": ', "}", separator="; "),),
)
