"""DeepSeek V3 and V3.1: calls are between special tokens. V3 writes the arguments as a JSON code block."""

from __future__ import annotations

from agent_rft.chat.model_family import CallSyntax, ModelFamily

_MARK = "<｜tool▁calls▁begin｜>"
_END = "<｜tool▁calls▁end｜>"

DEEPSEEK_V3 = ModelFamily(
    name="deepseek_v3",
    tool_parser="deepseek_v3",
    call_syntaxes=(
        CallSyntax(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
            "\n```<｜tool▁call▁end｜>",
            before_calls=_MARK,
            after_calls=_END,
        ),
    ),
    call_mark=_MARK,
)
DEEPSEEK_V31 = ModelFamily(
    name="deepseek_v31",
    tool_parser="deepseek_v31",
    call_syntaxes=(
        CallSyntax(
            "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            separator="",
            before_calls=_MARK,
            after_calls=_END,
        ),
    ),
    call_mark=_MARK,
)
