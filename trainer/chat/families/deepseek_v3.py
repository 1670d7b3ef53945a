"""DeepSeek V3 and V3.1: calls between tokens of their own; V3 writes the arguments as a block of JSON code."""

from __future__ import annotations

from trainer.chat.family import Family

_MARK = "<｜tool▁calls▁begin｜>"

DEEPSEEK_V3 = Family(name="deepseek_v3", tool_parser="deepseek_v3", call_mark=_MARK)
DEEPSEEK_V31 = Family(name="deepseek_v31", tool_parser="deepseek_v31", call_mark=_MARK)
