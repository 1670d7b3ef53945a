"""Qwen3-Coder, Qwen3.5 and later, Nemotron 3: calls have a tag for the function and a tag for each parameter."""

from __future__ import annotations

from agent_rft.chat.model_family import CallSyntax, ModelFamily

QWEN3_CODER = ModelFamily(
    name="qwen3_coder",
    tool_parser="qwen3_coder",
    call_syntaxes=(
        CallSyntax("<tool_call>\n<function={name}>\n", "\n</function>\n</tool_call>", argument_style="qwen_xml"),
    ),
    call_mark="<tool_call>",
)
