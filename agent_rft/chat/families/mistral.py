"""Mistral: calls after `[TOOL_CALLS]`; the template requires ids of nine letters and digits.

Models until 2024 (vocabularies without `[ARGS]`) write one list of JSON calls per turn, in which an id may follow the
arguments. Later models write `[TOOL_CALLS]`, the name, `[ARGS]` and the arguments for each call.
"""

from __future__ import annotations

from dataclasses import replace

from agent_rft.chat.model_family import CallSyntax, ModelFamily

_LIST = CallSyntax(
    '{{"name": "{name}", "arguments": ',
    "}",
    tail='(, "id": "[a-zA-Z0-9]{9}")?',
    separator=", ",
    before="[TOOL_CALLS][",
    after="]",
)
MISTRAL = ModelFamily(
    name="mistral",
    tool_parser="mistral",
    calls=(
        CallSyntax("[TOOL_CALLS]{name}[ARGS]", "", separator=""),
        _LIST,
        replace(_LIST, before="[TOOL_CALLS] ["),
    ),
    call_mark="[TOOL_CALLS]",
    reasoning_delimiters=("[THINK]", "[/THINK]"),
)
