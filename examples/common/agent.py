"""Agent loop with OpenAI's SDK: ask the model, make its calls concurrently, add the results, until it answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openai import OpenAI

MAX_TURNS = 6

Execute = Callable[[str, str], str]
"""Function that takes a tool's name and its arguments as JSON, and returns the tool's output."""


def converse(
    client: OpenAI, model: str, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], execute: Execute
) -> Iterator[dict[str, Any]]:
    """Yield the new messages: the model's turns, the results of its calls, and finally its answer."""
    history: list[Any] = list(messages)
    offered: Any = list(tools)
    for _ in range(MAX_TURNS):
        answer = client.chat.completions.create(model=model, messages=history, tools=offered, temperature=0.0)
        message = answer.choices[0].message.model_dump(exclude_none=True)
        history.append(message)
        yield message
        calls = message.get("tool_calls", [])
        if not calls:
            return
        with ThreadPoolExecutor() as pool:
            outputs = list(
                pool.map(lambda call: execute(call["function"]["name"], call["function"]["arguments"]), calls)
            )
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": output}
            for call, output in zip(calls, outputs, strict=True)
        ]
        history += results
        yield from results


def shown(message: dict[str, Any]) -> str:
    """Return a message as lines for the terminal."""
    lines = [f"  {message['role']:>9}  {message['content']}"] if message.get("content") else []
    for call in message.get("tool_calls", []):
        arguments = _values(call["function"]["arguments"])
        lines.append(f"  {message['role']:>9}  -> {call['function']['name']}({arguments})")
    return "\n".join(lines)


def _values(arguments: str) -> str:
    """Return the values of a call's arguments as text; invalid arguments are returned unchanged."""
    try:
        return ", ".join(map(str, json.loads(arguments).values()))
    except (ValueError, AttributeError, RecursionError):
        return arguments
