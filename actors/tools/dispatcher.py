"""Makes all tool calls of a turn concurrently: the turn gets all results, in the order of its calls, or fails.

An answer of the tool to the model is a result, even a 4xx. An infrastructure failure is a ToolFailed: it discards the
rollout, and the turn's other calls are cancelled.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from actors.endpoints.answer import HttpAnswer, cut, status_text
from actors.endpoints.client import EndpointClient
from actors.endpoints.gate import Sockets
from actors.endpoints.signing import Signer
from actors.runtime.timing import REAL_TIMING, Timing
from actors.runtime.tracing import NO_TRACES, Tracer, failed
from trainer.errors import ToolFailed
from trainer.spec.endpoints import ToolSpec
from trainer.spec.operator.config import NOTHING_ALLOWED, Operator
from trainer.types import ToolCall, ToolResult

MAX_ERROR_CHARS = 2_000
"""How much of a 4xx's text the model sees: enough for a reason, too little for a whole HTML page."""
MAX_REQUEST_BYTES = 1_000_000
"""The wire contract's limit for the body of a call."""
TOO_LARGE = (
    "Error: HTTP 413 Content Too Large. The output is over {:,} bytes and was left out. Ask for a smaller part of it."
)
TOO_LARGE_REQUEST = (
    f"Error: HTTP 413 Content Too Large. The call is over {MAX_REQUEST_BYTES:,} bytes and was not made. "
    "Give shorter arguments."
)


class Dispatcher:
    """Calls the tools of a job.

    For example, with one tool at http://tools/search, which answers {"output": "2 open invoices"}:

        dispatcher = Dispatcher([ToolSpec(name="search", server_url="http://tools/search")])
        calls = [ToolCall("call_1", "search", '{"query": "invoices"}'), ToolCall("call_2", "serch", "{}")]
        await dispatcher.call_turn("trace_1", {"customer": 7}, calls)

    It POSTs call_1 (its body is in `_body`) and returns:

        [ToolResult("call_1", "2 open invoices", latency_s=0.12),
         ToolResult("call_2", "Error: there is no tool named 'serch'. The tools are: search.", error="unknown_tool")]
    """

    def __init__(
        self,
        tools: Sequence[ToolSpec],
        operator: Operator = NOTHING_ALLOWED,
        timing: Timing = REAL_TIMING,
        signer: Signer | None = None,
        tracer: Tracer = NO_TRACES,
    ) -> None:
        self._tracer = tracer
        sockets = Sockets.of_process()
        self._tools = {tool.name: tool for tool in tools}
        self._clients = {
            tool.name: EndpointClient(
                f"tool {tool.name!r}",
                tool.server_url,
                tool,
                ToolFailed,
                timing,
                allowed_networks=operator.reachable,
                sockets=sockets,
                hedge_after_s=tool.hedge_after_s,
                signer=signer,
            )
            for tool in tools
        }

    async def call_turn(self, trace_id: str, item: dict[str, Any], calls: Sequence[ToolCall]) -> list[ToolResult]:
        """The results of one turn's calls, in their order. `item` is the dataset row.

        Raises:
            ToolFailed: a call failed after all retries; the message names the endpoint and the reason.
            EndpointRefused: a tool answered 401 or 403, or has an address that the operator does not allow.
        """
        if len(calls) == 1:
            return [await self._call(trace_id, item, calls[0])]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._call(trace_id, item, call)) for call in calls]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    def stats(self) -> dict[str, dict[str, Any]]:
        """EndpointClient.stats of each tool."""
        return {name: client.stats() for name, client in self._clients.items()}

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _call(self, trace_id: str, item: dict[str, Any], call: ToolCall) -> ToolResult:
        client = self._clients.get(call.name)
        if client is None:
            known = ", ".join(sorted(self._clients)) or "none"
            text = f"Error: there is no tool named {cut(call.name, 100)!r}. The tools are: {known}."
            return ToolResult(call.call_id, text, error="unknown_tool")
        body = json.dumps(call_body(trace_id, item, call)).encode()
        if len(body) > MAX_REQUEST_BYTES:
            client.counts.errors["too_large"] += 1
            return ToolResult(call.call_id, TOO_LARGE_REQUEST, error="tool_error")
        with self._tracer.span(
            trace_id,
            f"execute_tool {call.name}",
            gen_ai__operation__name="execute_tool",
            gen_ai__tool__name=call.name,
            gen_ai__tool__type="function",
            gen_ai__tool__call__id=call.call_id,
        ) as span:
            answer = await client.post(body, call.call_id, trace_id)
            result = _result(client, self._tools[call.name].max_output_bytes, call, answer)
            span.set_attribute("agent_rft.retries", result.retries)
            if result.error is not None:
                client.counts.errors["too_large" if answer.ok else "tool_error"] += 1
                failed(span, result.error)
        return result


def call_body(trace_id: str, item: dict[str, Any], call: ToolCall) -> dict[str, Any]:
    """The request body of a call, as in the wire contract."""
    return {
        "type": "function_call",
        "id": call.call_id,
        "call_id": call.call_id,
        "name": call.name,
        "arguments": call.arguments,
        "trace_id": trace_id,
        "item": item,
    }


def _result(client: EndpointClient, max_output_bytes: int, call: ToolCall, answer: HttpAnswer) -> ToolResult:
    """The result that the model sees for an answer.

    Raises:
        ToolFailed: a 2xx without a valid output.
    """
    result = partial(ToolResult, call.call_id, latency_s=answer.latency_s, retries=answer.retries)
    output = None if answer.truncated else _output(answer)
    if output is None and not answer.ok:
        text = client.scrub(answer.text).strip()
        error_text = f"Error: {status_text(answer.status)}. {cut(text, MAX_ERROR_CHARS)}".rstrip()
        return result(error_text, error="tool_error", truncated=len(text) > MAX_ERROR_CHARS)
    if answer.truncated or (output is not None and _num_bytes(output) > max_output_bytes):
        return result(TOO_LARGE.format(max_output_bytes), error="tool_error", truncated=True)
    if output is None:
        raise client.bad_answer(answer, 'the body is not a JSON object such as {"output": "..."}')
    return result(output, error=None if answer.ok else "tool_error")


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _output(answer: HttpAnswer) -> str | None:
    """The answer's `output` as valid Unicode text; None if it has none."""
    try:
        body = answer.json()
    except ValueError:
        return None
    if not isinstance(body, dict) or "output" not in body:
        return None
    output = body["output"]
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    # JSON can contain unpaired surrogates; UTF-8 cannot.
    return text if text.isascii() else text.encode(errors="replace").decode()
