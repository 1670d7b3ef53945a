"""Muse Glimmer: a turn consists of several messages with recipients. Messages to `self` are reasoning."""

from __future__ import annotations

from agent_rft.chat.model_family import CallSyntax, MessageSyntax, ModelFamily

_NEXT = "<|eom|><|start|>assistant"

MUSE_GLIMMER = ModelFamily(
    name="muse_glimmer",
    tool_parser="muse_glimmer",
    reasoning_parser="muse_glimmer",
    call_syntaxes=(
        CallSyntax(
            ' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n',
            "</atem:invoke>\n</atem:function_calls>",
            separator=_NEXT,
            argument_style="atem",
        ),
    ),
    message_syntax=MessageSyntax(
        around_reasoning=(" to=self<|message|>", _NEXT),
        excluded_texts=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
        before_answer=" to=user<|message|>",
    ),
    call_mark="<atem:function_calls>",
    stop_tokens=("<|eot|>",),
)
