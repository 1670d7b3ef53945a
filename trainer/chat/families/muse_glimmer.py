"""Muse Glimmer: a turn is several messages, each to a recipient; those to `self` are thoughts."""

from __future__ import annotations

from trainer.chat.family import Family

MUSE_GLIMMER = Family(
    name="muse_glimmer",
    tool_parser="muse_glimmer",
    reasoning_parser="muse_glimmer",
    call_mark="<atem:function_calls>",
    end_tokens=("<|eot|>",),
)
