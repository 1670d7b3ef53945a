"""GLM-4.5 and later: calls have a tag for each argument. A turn ends with the token that starts the next role."""

from __future__ import annotations

from agent_rft.chat.model_family import CallSyntax, ModelFamily

GLM4 = ModelFamily(
    name="glm4",
    tool_parser="glm45",
    call_syntaxes=(CallSyntax("<tool_call>{name}\n", "\n</tool_call>", argument_style="glm_xml"),),
    call_mark="<tool_call>",
    stop_tokens=("<|user|>", "<|observation|>", "<|endoftext|>"),
)
