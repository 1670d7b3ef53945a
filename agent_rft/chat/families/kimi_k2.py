"""Kimi K2: the model writes each call's id, which contains the call's number in the conversation."""

from __future__ import annotations

from agent_rft.chat.model_family import CallSyntax, ModelFamily

KIMI_K2 = ModelFamily(
    name="kimi_k2",
    tool_parser="kimi_k2",
    calls=(
        CallSyntax(
            "<|tool_call_begin|>functions.{name}:",
            "<|tool_call_end|>",
            head=r"[0-9]{1,4}<\|tool_call_argument_begin\|>",
            separator="",
            before="<|tool_calls_section_begin|>",
            after="<|tool_calls_section_end|>",
        ),
    ),
    call_mark="<|tool_calls_section_begin|>",
    exact=False,  # results contain the ids of their calls
    call_id="functions.{name}:{index}",
)
