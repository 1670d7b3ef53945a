"""Kimi K2: the id of a call, with its number in the conversation, is part of what the model writes."""

from __future__ import annotations

from agent_rft.chat.family import CallForm, Family

KIMI_K2 = Family(
    name="kimi_k2",
    tool_parser="kimi_k2",
    calls=(
        CallForm(
            "<|tool_call_begin|>functions.{name}:",
            "<|tool_call_end|>",
            head=r"[0-9]{1,4}<\|tool_call_argument_begin\|>",
            separator="",
            before="<|tool_calls_section_begin|>",
            after="<|tool_calls_section_end|>",
        ),
    ),
    call_mark="<|tool_calls_section_begin|>",
    exact=False,  # results name the ids of their calls
    call_id="functions.{name}:{index}",
)
