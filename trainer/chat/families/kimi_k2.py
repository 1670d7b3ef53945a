"""Kimi K2: the id of a call is part of what the model writes."""

from __future__ import annotations

from trainer.chat.family import Family

KIMI_K2 = Family(
    name="kimi_k2", tool_parser="kimi_k2", call_mark="<|tool_calls_section_begin|>", call_id="functions.{name}:{index}"
)
