"""Mistral: calls follow `[TOOL_CALLS]`. The chat template requires call ids of nine letters and digits.

Older models write the calls of a turn as one JSON list. Newer models write `[TOOL_CALLS]`, the name, `[ARGS]` and the
arguments for each call.
"""

from __future__ import annotations

from dataclasses import replace

from agent_rft.chat.model_family import CallSyntax, ModelFamily

_LIST = CallSyntax(
    '{{"name": "{name}", "arguments": ',
    "}",
    tail_pattern='(, "id": "[a-zA-Z0-9]{9}")?',
    separator=", ",
    before_calls="[TOOL_CALLS][",
    after_calls="]",
)
MISTRAL = ModelFamily(
    name="mistral",
    tool_parser="mistral",
    call_syntaxes=(
        CallSyntax("[TOOL_CALLS]{name}[ARGS]", "", separator=""),
        _LIST,
        replace(_LIST, before_calls="[TOOL_CALLS] ["),
    ),
    call_mark="[TOOL_CALLS]",
    reasoning_delimiters=("[THINK]", "[/THINK]"),
)
