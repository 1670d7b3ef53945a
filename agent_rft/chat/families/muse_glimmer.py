"""Muse Glimmer: a turn is several messages, each to a recipient; messages to `self` are reasoning."""

from __future__ import annotations

from agent_rft.chat.model_family import CallSyntax, MessageSyntax, ModelFamily

_NEXT = "<|eom|><|start|>assistant"

MUSE_GLIMMER = ModelFamily(
    name="muse_glimmer",
    tool_parser="muse_glimmer",
    reasoning_parser="muse_glimmer",
    calls=(
        CallSyntax(
            ' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n',
            "</atem:invoke>\n</atem:function_calls>",
            separator=_NEXT,
            style="atem",
        ),
    ),
    messages=MessageSyntax(
        reasoning=(" to=self<|message|>", _NEXT),
        excluded=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
        answer=" to=user<|message|>",
    ),
    call_mark="<atem:function_calls>",
    stop_tokens=("<|eot|>",),
)
