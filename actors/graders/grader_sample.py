"""The sample that graders receive, in the format of the wire contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from agent_rft.rows.strict_json import parse_untrusted_json
from agent_rft.types import ToolCall, ToolResult, Turn

FINISH_REASONS: dict[str, str] = {
    "answer": "stop",
    "max_steps": "tool_calls",
    "max_tokens": "length",
    "context": "length",
    "timeout": "length",
}
"""The chat API's `finish_reason` for each value of Finish."""


def make_sample(answer: str, turns: Sequence[Turn], finish: str, wants_json: bool) -> dict[str, Any]:
    """Return the sample of a trajectory: `choices`, `output_text`, `output_tools` and possibly `output_json`.

    `choices` contains the tool calls of the last turn, and `output_tools` contains all calls in order. Each call in
    `output_tools` has the keys of the wire contract, and also keys for its result: `output` (as the model saw it),
    `latency_s` and `error`, as in ToolResult. `output_json` exists only if the job's response format requires JSON
    (`wants_json`) and the answer is JSON that `parse_untrusted_json` accepts, with finite numbers.
    """
    last = turns[-1].calls if turns else ()
    message = {"role": "assistant", "content": answer, "tool_calls": [_format_call(call) for call in last]}
    sample: dict[str, Any] = {
        "choices": [{"index": 0, "message": message, "finish_reason": FINISH_REASONS.get(finish, finish)}],
        "output_text": answer,
        "output_tools": [entry for turn in turns for entry in _format_calls_with_results(turn)],
    }
    if wants_json:
        with suppress(ValueError):
            sample["output_json"] = parse_untrusted_json(answer).check_numbers().value
    return sample


def _format_calls_with_results(turn: Turn) -> Iterator[dict[str, Any]]:
    results = {result.call_id: result for result in turn.results}
    for call in turn.calls:
        result = results.get(call.call_id, ToolResult(call.call_id, ""))  # a synthetic trajectory may lack results
        outcome = {"output": result.output, "latency_s": result.latency_s, "error": result.error}
        yield _format_call(call) | outcome


def _format_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
