"""A fake model server with scripted answers, which records its requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from agent_rft.wire.api_errors import ApiError

USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def turn(
    content: str | None = None,
    *calls: dict[str, Any],
    reasoning: str | None = None,
    finish: str | None = None,
) -> dict[str, Any]:
    """One choice of a completion."""
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reasoning is not None:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish or _finish(calls)}


def _finish(calls: Sequence[Any]) -> str:
    return "tool_calls" if calls else "stop"


class FakeModels:
    """Answers with `turns`, one per choice of a request; the last one repeats."""

    def __init__(self, *turns: dict[str, Any], error: ApiError | None = None, breaks_after: int | None = None) -> None:
        self.bodies: list[Mapping[str, Any]] = []
        self._turns = list(turns)
        self._error = error
        self._breaks_after = breaks_after

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        choices = [{**self._next(body), "index": i} for i in range(body.get("n", 1))]
        return self._frame(body, "chat.completion", choices=choices, usage=USAGE)

    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        deltas = list(_deltas(self._next(body)))

        async def chunks() -> AsyncIterator[dict[str, Any]]:
            for i, (delta, finish) in enumerate(deltas):
                if i == self._breaks_after:
                    raise ApiError(503, "The model's engine failed.", code="model_unavailable", type="server_error")
                choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
                yield self._frame(body, "chat.completion.chunk", choices=[choice])
            yield self._frame(body, "chat.completion.chunk", choices=[], usage=USAGE)

        return chunks()

    def _next(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self._error is not None:
            raise self._error
        self.bodies.append(body)
        return self._turns.pop(0) if len(self._turns) > 1 else self._turns[0]

    def _frame(self, body: Mapping[str, Any], kind: str, **values: Any) -> dict[str, Any]:
        return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body["model"], **values}


def _deltas(choice: dict[str, Any]) -> list[tuple[dict[str, Any], str | None]]:
    """A choice as stream deltas, in pieces of three characters, each with its finish reason."""
    message = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning": piece} for piece in _pieces(message.get("reasoning") or "")]
    deltas += [{"content": piece} for piece in _pieces(message["content"] or "")]
    for i, made in enumerate(message.get("tool_calls") or ()):
        start = {"name": made["function"]["name"], "arguments": ""}
        deltas.append({"tool_calls": [{"index": i, "id": made["id"], "type": "function", "function": start}]})
        for piece in _pieces(made["function"]["arguments"]):
            deltas.append({"tool_calls": [{"index": i, "function": {"arguments": piece}}]})
    return [(delta, None) for delta in deltas] + [({}, choice["finish_reason"])]


def _pieces(text: str) -> list[str]:
    return [text[i : i + 3] for i in range(0, len(text), 3)]
