"""Concurrent tool calls of a conversation turn: either all calls return results, or the turn fails.

An answer from the tool, even a 4xx, is a result for the model. An infrastructure failure raises ToolFailed, which
cancels the turn's other calls and discards the rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from agent_rft.actors.endpoints.call_errors import TOO_LARGE_STATUSES
from agent_rft.actors.endpoints.client import EndpointClient
from agent_rft.actors.endpoints.gate import SocketLimit
from agent_rft.actors.endpoints.http_response import HttpResponse, format_status, truncate
from agent_rft.actors.endpoints.request_body import MAX_REQUEST_BYTES, encode_json
from agent_rft.actors.endpoints.signing import Signer
from agent_rft.actors.runtime.telemetry.tracing import NO_TRACES, Tracer, mark_failed
from agent_rft.actors.runtime.timing import REAL_TIMING, Timing
from agent_rft.actors.tools.tool_output import ReadableOutput, read_output
from agent_rft.errors import ToolFailed
from agent_rft.spec.endpoints import ToolSpec
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, OperatorConfig
from agent_rft.types import ToolCall, ToolResult

MAX_ERROR_CHARS = 2_000
"""Maximum characters of a 4xx body that the model sees: enough for a reason, too few for a full HTML page."""
TOO_LARGE = (
    "Error: HTTP 413 Content Too Large. The output is over {:,} bytes and was left out. Ask for a smaller part of it."
)
UNREADABLE = "Error: the output has a part of the type {!r}, but the model reads only text."
UNSUPPORTED_PART = "unsupported_part"
"""Error kind in an endpoint's statistics: the output has a part that is not text."""
TOO_LARGE_REQUEST = (
    f"Error: HTTP 413 Content Too Large. The call is over {MAX_REQUEST_BYTES:,} bytes and was not made. "
    "Give shorter arguments."
)


class Dispatcher:
    """Client of all tools of a job.

    For example, with one tool at http://tools/search, which answers {"output": "2 open invoices"}:

        dispatcher = Dispatcher([ToolSpec(name="search", server_url="http://tools/search")])
        calls = [ToolCall("call_1", "search", '{"query": "invoices"}'), ToolCall("call_2", "serch", "{}")]
        await dispatcher.call_turn("trace_1", {"customer": 7}, calls)

    It POSTs call_1 (with the body of `build_call_body`) and returns:

        [ToolResult("call_1", "2 open invoices", latency_s=0.12),
         ToolResult("call_2", "Error: there is no tool named 'serch'. The tools are: search.", error="unknown_tool")]
    """

    def __init__(
        self,
        tools: Sequence[ToolSpec],
        operator: OperatorConfig = DEFAULT_CONFIG,
        timing: Timing = REAL_TIMING,
        signer: Signer | None = None,
        tracer: Tracer = NO_TRACES,
        *,
        has_answered: bool = False,
    ) -> None:
        """Create the clients of the tools. `has_answered`: see EndpointClient.

        Raises:
            UserError: A URL or a header is invalid.
        """
        self._tracer = tracer
        sockets = SocketLimit.from_process_limits()
        self._tools = {tool.name: tool for tool in tools}
        self._clients = {
            tool.name: EndpointClient(
                f"tool {tool.name!r}",
                tool.server_url,
                tool,
                ToolFailed,
                timing,
                allowed_networks=operator.allowed_destinations,
                sockets=sockets,
                hedge_after_s=tool.hedge_after_s,
                signer=signer,
                has_answered=has_answered,
            )
            for tool in tools
        }

    async def call_turn(self, trace_id: str, item: dict[str, Any], calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Make all calls of one turn and return their results in the same order. `item` is the dataset row.

        Raises:
            ToolFailed: A call failed after all retries, the row is too large for a request, or the row offers a tool
                that the job does not have. The message names the endpoint and the reason.
            EndpointRefused: A tool refuses its key, or has an address that the operator does not allow.
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
        """Return EndpointClient.stats of each tool, by tool name."""
        return {name: client.stats() for name, client in self._clients.items()}

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def _call(self, trace_id: str, item: dict[str, Any], call: ToolCall) -> ToolResult:
        client = self._clients.get(call.name)
        if client is None:
            if _has_tool(item, call.name):
                raise _make_no_server_error(call.name)
            names = ", ".join(sorted(self._clients)) or "none"
            text = f"Error: there is no tool named {truncate(call.name, 100)!r}. The tools are: {names}."
            return ToolResult(call.call_id, text, error="unknown_tool")
        body = encode_json(build_call_body(trace_id, item, call))
        if len(body) > MAX_REQUEST_BYTES:
            if len(encode_json(build_call_body(trace_id, {}, call))) > MAX_REQUEST_BYTES:
                client.counts.errors["too_large"] += 1
                return ToolResult(call.call_id, TOO_LARGE_REQUEST, error="tool_error")
            client.counts.errors["request_too_large"] += 1
            raise _make_row_error(client.what, item, len(body))
        with self._tracer.span(
            trace_id,
            f"execute_tool {call.name}",
            gen_ai__operation__name="execute_tool",
            gen_ai__tool__name=call.name,
            gen_ai__tool__type="function",
            gen_ai__tool__call__id=call.call_id,
        ) as span:
            answer = await client.post(body, call.call_id, trace_id)
            result, error = _to_result(client, self._tools[call.name].max_output_bytes, call, answer)
            span.set_attribute("agent_rft.retries", result.retries)
            if result.error is not None:
                client.counts.errors[error] += 1
                mark_failed(span, result.error)
        return result


def build_call_body(trace_id: str, item: dict[str, Any], call: ToolCall) -> dict[str, Any]:
    """Return the request body of a call, as defined in the wire contract."""
    return {
        "type": "function_call",
        "id": call.call_id,
        "call_id": call.call_id,
        "name": call.name,
        "arguments": call.arguments,
        "trace_id": trace_id,
        "item": item,
    }


def _has_tool(item: Mapping[str, Any], name: str) -> bool:
    """Return whether the row offers the model a tool with this name."""
    tools = item.get("tools")
    given = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    functions = [tool.get("function") or tool for tool in given]  # flat tools have no `function`
    return any(isinstance(function, dict) and function.get("name") == name for function in functions)


def _make_no_server_error(name: str) -> ToolFailed:
    """Return the error for a call to a tool that the row offers but the job does not have."""
    problem, fix = f"the row's tool {name!r} has no server", "add the tool, with its server_url, to the job's tools"
    return ToolFailed(f"{problem}: {fix}", problem=problem, fix=fix, kind="tool_without_server")


def _make_row_error(what: str, item: dict[str, Any], num_bytes: int) -> ToolFailed:
    """Return the error for a call that is too large because of the row's data.

    The model cannot change the row, so the rollout is discarded.
    """
    row = f"the row alone has {len(encode_json(item)):,} bytes"
    size = f"the request has {num_bytes:,} bytes (limit {MAX_REQUEST_BYTES:,}), and {row}"
    problem = f"{what} was not called, because {size}"
    fix = "shorten the row: keep large values in a file that the tool reads"
    return ToolFailed(f"{problem}; {fix}", problem=problem, fix=fix, kind="request_too_large")


def _to_result(
    client: EndpointClient, max_output_bytes: int, call: ToolCall, answer: HttpResponse
) -> tuple[ToolResult, str]:
    """Convert an answer to the result that the model sees, and the kind of its error for the endpoint's statistics.

    Raises:
        ToolFailed: The answer is a 2xx without a valid output, or an error that the model cannot influence.
    """
    result = partial(ToolResult, call.call_id, latency_s=answer.latency_s, retries=answer.retries)
    output, why = None, ""
    try:
        output = None if answer.truncated else _parse_output(answer)
    except ValueError as error:
        why = f": {error}"
    if output is None and (answer.status in TOO_LARGE_STATUSES or answer.has_no_credit):
        raise client.make_bad_answer_error(answer, "the model cannot change that")
    if output is None and not answer.ok:
        text = client.scrub(answer.text).strip()
        error_text = f"Error: {format_status(answer.status)}. {truncate(text, MAX_ERROR_CHARS)}".rstrip()
        return result(error_text, error="tool_error", truncated=len(text) > MAX_ERROR_CHARS), "tool_error"
    too_large = "too_large" if answer.ok else "tool_error"
    if answer.truncated or (output is not None and _count_bytes(output.text) > max_output_bytes):
        return result(TOO_LARGE.format(max_output_bytes), error="tool_error", truncated=True), too_large
    if output is None:
        raise client.make_bad_answer_error(answer, f'the body is not a JSON object such as {{"output": "..."}}{why}')
    if output.unsupported:
        return result(UNREADABLE.format(output.unsupported), error="tool_error"), UNSUPPORTED_PART
    return result(output.text, error=None if answer.ok and not output.is_error else "tool_error"), "tool_error"


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _parse_output(answer: HttpResponse) -> ReadableOutput | None:
    """Return the `output` in the answer as valid Unicode text; None if it is missing.

    Raises:
        ValueError: The body is not valid JSON.
    """
    body = answer.json()
    if not isinstance(body, dict) or "output" not in body:
        return None
    output = read_output(body["output"])
    # JSON can contain unpaired surrogates; UTF-8 cannot.
    text = output.text
    return output if text.isascii() else output._replace(text=text.encode(errors="replace").decode())
