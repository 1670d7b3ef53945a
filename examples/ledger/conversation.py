"""Complete conversation: a question, turns of tool calls, and the final answer."""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from examples.ledger.questions import Question
from examples.ledger.tools import TOOLS
from examples.ledger.world import World

Message = dict[str, Any]
"""A message in the format of chat completions."""


class Call(NamedTuple):
    """One tool call: the tool's name and the value of its only argument."""

    tool: str
    argument: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """Question, turns of calls, and the final answer. The calls of one turn are sent together."""

    question: Question
    turns: tuple[tuple[Call, ...], ...]
    answer: str

    def messages(self, world: World) -> list[Message]:
        """Return the conversation as chat messages, with tool results from the world."""
        messages: list[Message] = [{"role": "user", "content": self.question.text}]
        num_calls = 0
        for turn in self.turns:
            ids = [f"call_{num_calls + i}" for i in range(len(turn))]
            num_calls += len(turn)
            calls = [_call_form(call_id, call) for call_id, call in zip(ids, turn, strict=True)]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            for call_id, call in zip(ids, turn, strict=True):
                output = TOOLS[call.tool].run(world, call.argument)
                messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
        messages.append({"role": "assistant", "content": self.answer})
        return messages


def _call_form(call_id: str, call: Call) -> dict[str, Any]:
    arguments = json.dumps({TOOLS[call.tool].parameter: call.argument})
    return {"id": call_id, "type": "function", "function": {"name": call.tool, "arguments": arguments}}
