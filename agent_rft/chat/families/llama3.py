"""Llama 3.1 to 3.3: a turn consists of one JSON call, with `parameters`."""

from __future__ import annotations

from agent_rft.chat.family import CallForm, Family

LLAMA3 = Family(
    name="llama3",
    tool_parser="llama3_json",
    calls=(CallForm('{{"name": "{name}", "parameters": ', "}", separator="; "),),
)
