"""LFM2: a list of calls in Python syntax; the first published template renders no calls in the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_rft.chat.model_family import CallSyntax, ModelFamily


def _write(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    texts = (f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for name, given in calls)
    return f"<|tool_call_start|>[{', '.join(texts)}]<|tool_call_end|>"


LFM2 = ModelFamily(
    name="lfm2",
    tool_parser="lfm2",
    calls=(
        CallSyntax(
            "{name}(", ")", separator=", ", style="python", before="<|tool_call_start|>[", after="]<|tool_call_end|>"
        ),
    ),
    call_mark="<|tool_call_start|>",
    write_calls=_write,
)
