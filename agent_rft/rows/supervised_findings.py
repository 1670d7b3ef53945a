"""Findings in supervised rows: calls and weights that would teach the model something wrong.

Findings of these kinds are errors:

- A call has no result, or a result has no call. The API refuses such a conversation.
- A message has a call, but the row has no tools. A model without tools makes no calls.
- No message of the row is trained.

All other findings are warnings. For example, a row may show how the model recovers from a call to an unknown tool. The
tool and the arguments of a call are not checked in messages with weight 0, because these messages are not trained.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from agent_rft.chat.template_messages import format_arguments
from agent_rft.rows.strict_json import MAX_SHOWN_CHARS, parse_json
from agent_rft.spec.schemas.json_schema import SchemaValidator
from agent_rft.types import Message, Task

MAX_NAME_CHARS = 64
MAX_VALIDATORS = 256
"""Maximum number of compiled tool schemas in the cache."""
UNKNOWN_TOOL_FIX = "add the tool to the row's `tools`, or remove the call"
ARGUMENTS_FIX = "correct the arguments, or set the weight of the message to 0"


class RowFinding(NamedTuple):
    """A finding in a row: its problem code, its path in the row such as `.messages[1]`, the message and the fix."""

    code: str
    part: str
    message: str
    fix: str


def find_supervised_findings(task: Task) -> Iterator[RowFinding]:
    """Yield what is wrong with the calls and weights of a supervised row."""
    messages = task.messages
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in task.tools}
    trains = False
    for i, message in enumerate(messages):
        part = f".messages[{i}]"
        if message["role"] == "tool" and not _follows_calls(messages, i):
            fix = "put the result directly after the assistant message with its call"
            yield RowFinding("unanswered_call", part, "the result follows no tool call", fix)
        if message["role"] != "assistant":
            continue
        yield from _check_weight(message, part)
        yield from _check_results(messages, i, part)
        if not is_trained(message):
            continue
        trains = True
        if i and messages[i - 1]["role"] == "assistant" and not messages[i - 1].get("tool_calls"):
            text = "the message follows an assistant message, but a model writes one message per turn"
            fix = "merge the two messages, or put a user message or a tool result between them"
            yield RowFinding("repeated_assistant", part, text, fix)
        for j, call in enumerate(message.get("tool_calls") or ()):
            yield from _check_call(call["function"], schemas, f"{part}.tool_calls[{j}]")
    if not trains:
        fix = "set the weight of an assistant message to 1, or remove the row"
        yield RowFinding("nothing_trained", ".messages", "nothing in the row is trained: all weights are 0", fix)


def is_trained(message: Message) -> bool:
    """Return whether the message is an assistant message whose tokens are trained."""
    return message["role"] == "assistant" and message.get("weight") != 0


def _check_weight(message: Message, part: str) -> Iterator[RowFinding]:
    weight = message.get("weight")
    if weight is None or (isinstance(weight, int | float) and not isinstance(weight, bool) and weight in (0, 1)):
        return
    shown = json.dumps(weight)[:MAX_SHOWN_CHARS]
    text = f"the weight {shown} counts as {int(is_trained(message))}, because weights are 0 or 1"
    fix = "write 1 to train on the message, or 0 to exclude the message from training"
    yield RowFinding("invalid_weight", f"{part}.weight", text, fix)


def _check_results(messages: Sequence[Message], i: int, part: str) -> Iterator[RowFinding]:
    """Check that the results of the calls in message `i` directly follow this message.

    The calls of the last message need no results. Ids may be missing, because templates match results to calls by
    position.
    """
    calls = messages[i].get("tool_calls") or ()
    if not calls or i == len(messages) - 1:
        return
    stop = next((j for j in range(i + 1, len(messages)) if messages[j]["role"] != "tool"), len(messages))
    left = [result.get("tool_call_id") for result in messages[i + 1 : stop]]
    unanswered = []
    for j, call in enumerate(calls):
        if call.get("id") and call["id"] in left:
            left.remove(call["id"])
        else:
            unanswered.append(j)
    for j in unanswered:
        id = calls[j].get("id")
        if matching := [k for k, other in enumerate(left) if not id or not other]:
            del left[matching[0]]
            continue
        text = f"the call of {_shorten(calls[j]['function']['name'])} has no result"
        fix = "add a tool message with the call's id and result directly after the message that makes the call"
        yield RowFinding("unanswered_call", f"{part}.tool_calls[{j}]", text, fix)
    if len(left) > len(unanswered):
        text, fix = "the message has more results than calls", "remove the results without a call"
        yield RowFinding("unanswered_call", part, text, fix)


def _follows_calls(messages: Sequence[Message], i: int) -> bool:
    """Return whether an assistant message with calls precedes the tool message at index `i`.

    Only other tool messages may be between the two messages.
    """
    before = next((message for message in reversed(messages[:i]) if message["role"] != "tool"), None)
    return before is not None and bool(before.get("tool_calls"))


def _check_call(function: dict[str, Any], schemas: dict[str, Any], part: str) -> Iterator[RowFinding]:
    name = function["name"]
    if not schemas:
        text = f"the row calls {_shorten(name)}, but has no tools"
        yield RowFinding("call_without_tools", part, text, "add `tools` with the schema of the tool to the row")
        return
    if name not in schemas:
        text = f"the row calls {_shorten(name)}, but does not have this tool"
        yield RowFinding("unknown_tool", part, text, UNKNOWN_TOOL_FIX)
    if (error := _find_argument_error(function.get("arguments"), schemas.get(name))) is not None:
        text = f"the arguments of {_shorten(name)} {error}"
        yield RowFinding("invalid_arguments", f"{part}.function.arguments", text, ARGUMENTS_FIX)


def _find_argument_error(arguments: Any, schema: Any) -> str | None:
    """Return the error in a call's arguments as a clause; None if they are valid."""
    try:
        value = parse_json(format_arguments(arguments)).value
    except (ValueError, RecursionError) as error:
        return f"are not valid JSON: {error}" if isinstance(error, ValueError) else "are nested too deeply"
    if not isinstance(value, dict):
        return "are not a JSON object"
    if schema is None:
        return None
    violation = _get_validator(json.dumps(schema)).find_violation(value)
    return None if violation is None else f"violate the tool's schema {violation}"


@functools.lru_cache(MAX_VALIDATORS)
def _get_validator(schema: str) -> SchemaValidator:
    return SchemaValidator(json.loads(schema))


def _shorten(name: str) -> str:
    return repr(name if len(name) <= MAX_NAME_CHARS else f"{name[:MAX_NAME_CHARS]}...")
