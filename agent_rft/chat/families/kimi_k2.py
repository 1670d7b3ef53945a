"""Kimi K2: the model writes an id for each call. The id contains the call's number in the conversation."""

from __future__ import annotations

from agent_rft.chat.model_family import CallSyntax, ModelFamily

KIMI_K2 = ModelFamily(
    name="kimi_k2",
    tool_parser="kimi_k2",
    call_syntaxes=(
        CallSyntax(
            "<|tool_call_begin|>functions.{name}:",
            "<|tool_call_end|>",
            head_pattern=r"[0-9]{1,4}<\|tool_call_argument_begin\|>",
            separator="",
            before_calls="<|tool_calls_section_begin|>",
            after_calls="<|tool_calls_section_end|>",
        ),
    ),
    call_mark="<|tool_calls_section_begin|>",
    renders_turns_exactly=False,  # results contain the ids of their calls
    call_id_format="functions.{name}:{index}",
)
