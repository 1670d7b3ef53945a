"""All tool calls of a turn go out at once, and the turn has all results, in the order of its calls, or it has failed.

What a tool says to the model (a 4xx too) is a result. What went wrong on the way is a ToolFailed: it discards the
rollout, and the turn's other calls are cancelled.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ray

from actors.http_client import MAX_OUTPUT_BYTES, REAL_TIMING, Answer, EndpointClient, Timing, cut, status_text
from actors.outcome import ask, outcome_of
from actors.sessions import SessionBook
from trainer.endpoint_spec import SessionSpec, ToolSpec
from trainer.errors import EndpointRefused, RftError, ToolFailed
from trainer.types import ToolCall, ToolResult

MAX_ERROR_CHARS = 2_000
"""What the model sees of the text of a 4xx: enough for a reason, too little for a whole HTML page."""
TOO_LARGE = (
    f"Error: HTTP 413 Content Too Large. The output is over {MAX_OUTPUT_BYTES:,} bytes and was left out. "
    "Ask for a smaller part of it."
)


@dataclass(slots=True)
class ToolStats:
    """Counts of one tool. `errors` by kind: tool_error (a 4xx), too_large, bad_answer, refused, busy, deadline,
    server_error, connection, redirect. `latency_sum_s` sums the answered calls."""

    calls: int = 0
    answered: int = 0
    cancelled: int = 0
    retries: int = 0
    latency_sum_s: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)


class Dispatcher:
    """Calls the tools of a job."""

    def __init__(self, tools: Sequence[ToolSpec], timing: Timing = REAL_TIMING) -> None:
        self._clients = {
            tool.name: EndpointClient(f"tool {tool.name!r}", tool.server_url, tool, ToolFailed, timing)
            for tool in tools
        }
        self._stats = {tool.name: ToolStats() for tool in tools}

    async def call_turn(self, trace_id: str, item: dict[str, Any], calls: Sequence[ToolCall]) -> list[ToolResult]:
        """The results of one turn's calls, in their order. `item` is the dataset row.

        Raises:
            ToolFailed: a call failed in the end; names the endpoint and why.
            EndpointRefused: a tool answered 401 or 403.
        """
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._call(trace_id, item, call)) for call in calls]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    def stats(self) -> dict[str, dict[str, Any]]:
        """The counts of each tool since the start: ToolStats as plain values."""
        return {name: {**asdict(stats), "errors": dict(stats.errors)} for name, stats in self._stats.items()}

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _call(self, trace_id: str, item: dict[str, Any], call: ToolCall) -> ToolResult:
        client = self._clients.get(call.name)
        if client is None:
            known = ", ".join(sorted(self._clients)) or "none"
            text = f"Error: there is no tool named {cut(call.name, 100)!r}. The tools are: {known}."
            return ToolResult(call.call_id, text, error="unknown_tool")
        stats = self._stats[call.name]
        stats.calls += 1
        try:
            answer = await client.post(_body(trace_id, item, call), idempotency_key=call.call_id)
            result = _result(client, call, answer)
        except (ToolFailed, EndpointRefused) as error:
            stats.errors[error.details["kind"]] += 1
            stats.retries += error.details["retries"]
            raise
        except asyncio.CancelledError:
            stats.cancelled += 1
            raise
        stats.answered += 1
        stats.retries += result.retries
        stats.latency_sum_s += result.latency_s
        if result.error is not None:
            stats.errors["too_large" if answer.ok else "tool_error"] += 1
        return result


def _body(trace_id: str, item: dict[str, Any], call: ToolCall) -> dict[str, Any]:
    """Section 4 of the wire contract."""
    return {
        "type": "function_call",
        "id": call.call_id,
        "call_id": call.call_id,
        "name": call.name,
        "arguments": call.arguments,
        "trace_id": trace_id,
        "item": item,
    }


def _result(client: EndpointClient, call: ToolCall, answer: Answer) -> ToolResult:
    """What the model sees of an answer."""
    result = partial(ToolResult, call.call_id, latency_s=answer.latency_s, retries=answer.retries)
    output = None if answer.truncated else _output(answer)
    if output is None and not answer.ok:
        text = client.scrub(answer.text).strip()
        error_text = f"Error: {status_text(answer.status)}. {cut(text, MAX_ERROR_CHARS)}".rstrip()
        return result(error_text, error="tool_error", truncated=len(text) > MAX_ERROR_CHARS)
    if answer.truncated or (output is not None and len(output.encode()) > MAX_OUTPUT_BYTES):
        return result(TOO_LARGE, error="tool_error", truncated=True)
    if output is None:
        raise client.bad_answer(answer, 'without the JSON object {"output": "..."} that a tool must give')
    return result(output, error=None if answer.ok else "tool_error")


def _output(answer: Answer) -> str | None:
    """The answer's `output` as text that can be encoded; None where it has none."""
    try:
        body = answer.json()
    except ValueError:
        return None
    if not isinstance(body, dict) or "output" not in body:
        return None
    output = body["output"]
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return text.encode(errors="replace").decode()  # JSON can hold halves of surrogate pairs; UTF-8 cannot


# -- over Ray ----------------------------------------------------------------------------------------------------------


@ray.remote(num_cpus=0, max_concurrency=10_000, max_restarts=-1)
class DispatcherActor:
    """A Dispatcher in a process of its own: one message a turn. It keeps nothing between calls but counts, so it may
    be started anew at any time. Where the job has a `session`, it keeps the book of them too: started anew, it ends
    those that `journal` (a file of this node) has open."""

    def __init__(
        self, tools: Sequence[ToolSpec], session: SessionSpec | None = None, journal: Path | None = None
    ) -> None:
        self._dispatcher = Dispatcher(tools)
        self._news: list[str] = []
        self._sessions = None if session is None else SessionBook(session, journal, tell=self._news.append)
        gc.freeze()  # else full collections walk all that was imported

    async def call_turn(
        self, trace_id: str, item: dict[str, Any], calls: Sequence[ToolCall]
    ) -> list[ToolResult] | RftError:
        if self._sessions is not None and not self._sessions.is_open(trace_id):
            return ToolFailed(f"the session of {trace_id} has ended, so no tool is called", kind="session_over")
        return await outcome_of(self._dispatcher.call_turn(trace_id, item, calls))

    async def stats(self) -> dict[str, dict[str, Any]]:
        return self._dispatcher.stats()

    async def open_session(self, trace_id: str, item: dict[str, Any], owner: str) -> RftError | None:
        return None if self._sessions is None else await outcome_of(self._sessions.start(trace_id, item, owner))

    async def close_session(self, trace_id: str, reason: str) -> None:
        if self._sessions is not None:
            self._sessions.end(trace_id, reason)

    async def end_sessions_of(self, owner: str, reason: str) -> None:
        if self._sessions is not None:
            self._sessions.end_owner(owner, reason)

    async def close_sessions(self, reason: str) -> int:
        return 0 if self._sessions is None else await self._sessions.close(reason)

    async def session_stats(self) -> dict[str, Any]:
        if self._sessions is None:
            return {}
        news = self._news.copy()
        self._news.clear()
        return {**self._sessions.stats(), "news": news}


class DispatcherClient:
    """What engines hold: a Dispatcher's methods, answered by the actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def call_turn(self, trace_id: str, item: dict[str, Any], calls: Sequence[ToolCall]) -> list[ToolResult]:
        """As Dispatcher.call_turn; raises ToolFailed also where the dispatcher's process died."""
        ref = self._actor.call_turn.remote(trace_id, item, calls)
        results: list[ToolResult] = await ask(ref, "the tool dispatcher", ToolFailed)
        return results

    async def stats(self) -> dict[str, dict[str, Any]]:
        stats: dict[str, dict[str, Any]] = await ask(self._actor.stats.remote(), "the tool dispatcher", ToolFailed)
        return stats

    async def open_session(self, trace_id: str, item: dict[str, Any], owner: str) -> None:
        """As SessionBook.start; raises ToolFailed also where the dispatcher's process died."""
        await ask(self._actor.open_session.remote(trace_id, item, owner), "the tool dispatcher", ToolFailed)

    def close_session(self, trace_id: str, reason: str) -> None:
        """As SessionBook.end. A dispatcher that died ends the session when it is started anew."""
        self._actor.close_session.remote(trace_id, reason)

    def end_sessions_of(self, owner: str, reason: str) -> None:
        """As SessionBook.end_owner."""
        self._actor.end_sessions_of.remote(owner, reason)

    async def close_sessions(self, reason: str) -> int:
        """As SessionBook.close."""
        left: int = await ask(self._actor.close_sessions.remote(reason), "the tool dispatcher", ToolFailed)
        return left

    async def session_stats(self) -> dict[str, Any]:
        """As SessionBook.stats; `news` are texts for the user, each given once."""
        stats: dict[str, Any] = await ask(self._actor.session_stats.remote(), "the tool dispatcher", ToolFailed)
        return stats


class OwnedSessions:
    """The sessions of one worker, as episodes see them. `owner` is the name of one incarnation of it."""

    def __init__(self, dispatcher: DispatcherClient, owner: str) -> None:
        self._dispatcher = dispatcher
        self._owner = owner

    async def start(self, trace_id: str, item: dict[str, Any]) -> None:
        await self._dispatcher.open_session(trace_id, item, self._owner)

    def end(self, trace_id: str, reason: str) -> None:
        self._dispatcher.close_session(trace_id, reason)
