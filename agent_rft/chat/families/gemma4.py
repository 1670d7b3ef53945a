"""Gemma 4: calls between `<|tool_call>` and `<tool_call|>`; results are part of the turn that made the calls."""

from __future__ import annotations

from agent_rft.chat.model_family import CallSyntax, ModelFamily

GEMMA4 = ModelFamily(
    name="gemma4",
    tool_parser="gemma4",
    calls=(CallSyntax("<|tool_call>call:{name}{{", "}<tool_call|>", separator="", style="gemma"),),
    call_mark="<|tool_call>",
    reasoning_delimiters=("<|channel>", "<channel|>"),
    reasoning_prefix="thought\n",
    stop_tokens=("<turn|>", "<|tool_response>"),
)
