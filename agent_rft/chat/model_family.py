"""Model families: the parts of a conversation format that a chat template does not show.

Rendering probes detects most of a model's format (`agent_rft.chat.template_format`). A family adds the rest, in one
small file of `agent_rft.chat.families`. A round trip selects a model's family; its name does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WriteCalls = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], str]
"""Function from (name, arguments) of each call of a turn to the turn's text."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """Syntax of a tool call, for constrained decoding.

    Attributes:
        begin: Text before the arguments; `{name}` stands for the tool's name.
        end: Text after the arguments.
        separator: Text between two calls; None: a turn has at most one call.
        style: Syntax of the arguments: a style of xgrammar's JSON schema format, or of `literals` or `parameters` in
            `agent_rft.actors.engine.grammar`.
        before: Text before the first call of a turn.
        after: Text after the last call of a turn.
        head: Pattern of the text between `begin` and the arguments, such as a number.
        tail: Pattern of the text between the arguments and `end`.
        also: Alternatives to `begin` that models of the family write.
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
class MessageSyntax:
    """Syntax of a turn that consists of several messages, for constrained decoding.

    Attributes:
        thought: Texts before and after reasoning; the second one extends to the start of the next message.
        excluded: Texts that reasoning never contains.
        answer: Text before an answer.
    """

    reasoning: tuple[str, str]
    excluded: tuple[str, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """Conversation format of a model family, as far as the chat template does not show it.

    Attributes:
        tool_parser: vLLM's tool parser that parses the calls; None: the models work only without tools.
        reasoning_parser: vLLM's reasoning parser, if reasoning is a separate message and not enclosed in delimiters.
        calls: Possible syntaxes of calls, of which a template writes one. If empty, answers cannot be constrained when
            there are tools.
        messages: Syntax of turns with several messages; None: turns have one message, or are not constrained.
        call_mark: Text that every turn with calls contains, and no answer; None: no such text exists.
        reasoning_delimiters: Tokens that open and close reasoning. reasoning_prefix: Text after the opening delimiter
        that is not part of the reasoning. stop_tokens: Tokens that end a turn, if the template does not end all turns
        with one token. The token before tool
            results may differ from the one after an answer.
        exact: Whether the template renders a turn of the history exactly as the model wrote it. If not, each turn's
            prompt is rendered again, and a rollout has a segment for each turn.
        call_id: Format of call ids in the history, from the call's `name` and its `index` in the conversation.
        write_calls: Writes calls as text, for templates that render no calls.
    """

    name: str
    tool_parser: str | None
    reasoning_parser: str | None = None
    calls: tuple[CallSyntax, ...] = ()
    messages: MessageSyntax | None = None
    call_mark: str | None = None
    reasoning_delimiters: tuple[str, str] = ("<think>", "</think>")
    reasoning_prefix: str = ""
    stop_tokens: tuple[str, ...] = ()
    exact: bool = True
    call_id: str = "call{index:05d}"
    write_calls: WriteCalls | None = None
