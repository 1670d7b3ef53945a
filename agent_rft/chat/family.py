"""A model family: what cannot be read off a chat template about how its models write.

Most of what a model's conversations look like is found by rendering probes (`agent_rft.chat.form`). A family
adds the rest, in one small file of `agent_rft.chat.families`; which family a model has is found by a round
trip, not by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WriteCalls = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], str]
"""(name, arguments) of each call of a turn -> the turn's text."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a call is written, for constrained decoding.

    Attributes:
        begin: The text before the arguments; `{name}` stands for the tool's name.
        end: The text after them.
        separator: The text between two calls; None: a turn has one.
        style: How the arguments are written: a style of xgrammar's JSON schema format, or of `literals` or
            `parameters` in `agent_rft.actors.engine.grammar`.
        before: The text before the first call of a turn.
        after: The text after the last one.
        head: A pattern of what is between `begin` and the arguments, such as a number.
        tail: A pattern of what is between the arguments and `end`.
        also: Other texts that models of the family write in place of `begin`.
    """

    begin: str
    end: str
    separator: str | None = "\n"
    style: str = "json"
    before: str = ""
    after: str = ""
    head: str = ""
    tail: str = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageForm:
    """How a turn of several messages is written, for constrained decoding.

    Attributes:
        thought: The texts around a thought, the second one up to where the next message begins.
        excluded: Texts that no thought has.
        answer: The text before an answer.
    """

    thought: tuple[str, str]
    excluded: tuple[str, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class Family:
    """How the models of a family write, beside what their chat template shows.

    Attributes:
        tool_parser: vLLM's tool parser that reads their calls; None: the models work without tools only.
        reasoning_parser: vLLM's reasoning parser, where a thought is a message of its own and not between marks.
        calls: The forms of calls, of which a template writes one; without any, answers cannot be constrained where
            there are tools.
        messages: The form of turns, where they are several messages; None: they are not, or are not constrained.
        call_mark: A text that each turn with calls has, and no answer; None: there is none.
        thought_marks: The tokens around a thought.
        thought_head: What follows the opening mark and is not part of the thought.
        end_tokens: The tokens that end a turn, where the template does not end all turns with one token. The one before
            tool results may differ from that of an answer.
        exact: Whether a turn in the history is rendered as the model writes it. Else each turn's prompt is rendered
            again, and a rollout has a segment for each turn.
        call_id: The ids of calls in the history, of the call's `name` and its `index` in the conversation.
        write_calls: Writes calls as text, for templates that render none.
    """

    name: str
    tool_parser: str | None
    reasoning_parser: str | None = None
    calls: tuple[CallForm, ...] = ()
    messages: MessageForm | None = None
    call_mark: str | None = None
    thought_marks: tuple[str, str] = ("<think>", "</think>")
    thought_head: str = ""
    end_tokens: tuple[str, ...] = ()
    exact: bool = True
    call_id: str = "call{index:05d}"
    write_calls: WriteCalls | None = None
