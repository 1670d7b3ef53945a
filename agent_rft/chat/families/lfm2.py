"""LFM2: a turn has a list of calls in Python syntax. The first release's template does not render earlier calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_rft.chat.model_family import CallSyntax, ModelFamily


def _write_calls(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    texts = (f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for name, given in calls)
    return f"<|tool_call_start|>[{', '.join(texts)}]<|tool_call_end|>"


LFM2 = ModelFamily(
    name="lfm2",
    tool_parser="lfm2",
    call_syntaxes=(
        CallSyntax(
            "{name}(",
            ")",
            separator=", ",
            argument_style="python",
            before_calls="<|tool_call_start|>[",
            after_calls="]<|tool_call_end|>",
        ),
    ),
    call_mark="<|tool_call_start|>",
    write_calls=_write_calls,
)
