"""Mistral: calls after `[TOOL_CALLS]`; the template wants ids of nine letters and digits.

Until 2024 (vocabularies without `[ARGS]`) a turn has one list of JSON calls, in which an id may follow the arguments;
since then each call has its mark, its name, and the arguments after `[ARGS]`.
"""

from __future__ import annotations

from dataclasses import replace

from agent_rft.chat.family import CallForm, Family

_LIST = CallForm(
    '{{"name": "{name}", "arguments": ',
    "}",
    tail='(, "id": "[a-zA-Z0-9]{9}")?',
    separator=", ",
    before="[TOOL_CALLS][",
    after="]",
)
MISTRAL = Family(
    name="mistral",
    tool_parser="mistral",
    calls=(
        CallForm("[TOOL_CALLS]{name}[ARGS]", "", separator=""),
        _LIST,
        replace(_LIST, before="[TOOL_CALLS] ["),
    ),
    call_mark="[TOOL_CALLS]",
    thought_marks=("[THINK]", "[/THINK]"),
)
