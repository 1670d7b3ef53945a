"""Gemma 4: calls are between `<|tool_call>` and `<tool_call|>`. Tool results are part of the turn with the calls."""

from __future__ import annotations

from agent_rft.chat.model_family import CallSyntax, ModelFamily

GEMMA4 = ModelFamily(
    name="gemma4",
    tool_parser="gemma4",
    call_syntaxes=(CallSyntax("<|tool_call>call:{name}{{", "}<tool_call|>", separator="", argument_style="gemma"),),
    call_mark="<|tool_call>",
    reasoning_delimiters=("<|channel>", "<channel|>"),
    reasoning_prefix="thought\n",
    stop_tokens=("<turn|>", "<|tool_response>"),
)
