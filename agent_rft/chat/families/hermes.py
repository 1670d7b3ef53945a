"""Hermes, Qwen2.5, Qwen3 and many others: JSON calls in `<tool_call>` tags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_rft.chat.model_family import CallSyntax, ModelFamily


def _write_calls(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    texts = (json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in calls)
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)


HERMES = ModelFamily(
    name="hermes",
    tool_parser="hermes",
    call_syntaxes=(CallSyntax('<tool_call>\n{{"name": "{name}", "arguments": ', "}\n</tool_call>"),),
    call_mark="<tool_call>",
    write_calls=_write_calls,
)
