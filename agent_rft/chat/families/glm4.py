"""GLM-4.5 and later: calls with a tag for each argument; a turn ends where the next role begins."""

from __future__ import annotations

from agent_rft.chat.model_family import CallSyntax, ModelFamily

GLM4 = ModelFamily(
    name="glm4",
    tool_parser="glm45",
    calls=(CallSyntax("<tool_call>{name}\n", "\n</tool_call>", style="glm_xml"),),
    call_mark="<tool_call>",
    stop_tokens=("<|user|>", "<|observation|>", "<|endoftext|>"),
)
