"""Llama 3.1 to 3.3: a turn with a call consists only of a JSON object with the keys `name` and `parameters`."""

from __future__ import annotations

from agent_rft.chat.model_family import CallSyntax, ModelFamily

LLAMA3 = ModelFamily(
    name="llama3",
    tool_parser="llama3_json",
    call_syntaxes=(CallSyntax('{{"name": "{name}", "parameters": ', "}", separator="; "),),
)
