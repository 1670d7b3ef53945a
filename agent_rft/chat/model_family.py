"""Model families: details of conversation formats that chat templates do not show.

Most of a model's format is detected by rendering test messages (`agent_rft.chat.template_format`). The rest is declared
by the model's family, in a small file of `agent_rft.chat.families`. The model's name does not select the family. A
family fits if its parser can read the calls that the template renders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WriteCalls = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], str]
"""Function that returns the text of a turn's calls, given (name, arguments) of each call."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """Syntax of a tool call, for constrained decoding.

    Attributes:
        begin: Text before the arguments; `{name}` stands for the tool's name.
        end: Text after the arguments.
        separator: Text between two calls; None: a turn has at most one call.
        argument_style: Syntax of the arguments: a style of xgrammar's JSON schema format, or a key of LITERAL_STYLES or
            ARGUMENT_TAGS in `agent_rft.actors.engine.grammar`.
        before_calls: Text before the first call of a turn.
        after_calls: Text after the last call of a turn.
        head_pattern: Regular expression for the text between `begin` and the arguments, such as a number.
        tail_pattern: Regular expression for the text between the arguments and `end`.
        other_begins: Other strings that models of the family write instead of `begin`.
    """

    begin: str
    end: str
    separator: str | None = "\n"
    argument_style: str = "json"
    before_calls: str = ""
    after_calls: str = ""
    head_pattern: str = ""
    tail_pattern: str = ""
    other_begins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageSyntax:
    """Syntax of a turn that consists of several messages, for constrained decoding.

    Attributes:
        around_reasoning: (text before reasoning, text between reasoning and the next message).
        excluded_texts: Strings that reasoning never contains.
        before_answer: Text before an answer.
    """

    around_reasoning: tuple[str, str]
    excluded_texts: tuple[str, ...]
    before_answer: str


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """Details of a model family's conversation format that chat templates do not show.

    Attributes:
        tool_parser: vLLM's tool parser that parses the calls; None: the models work only without tools.
        reasoning_parser: vLLM's reasoning parser, if reasoning is a separate message and not enclosed in delimiters.
        call_syntaxes: Possible syntaxes of calls; a template uses one of them. If empty, no grammar can constrain
            turns with tools.
        message_syntax: Syntax of turns with several messages; None: turns have one message, or are not constrained.
        call_mark: Text that every turn with calls contains and no answer contains; None: no such text exists.
        reasoning_delimiters: Tokens that open and close reasoning.
        reasoning_prefix: Text after the opening delimiter that is not part of the reasoning.
        stop_tokens: Tokens that end a turn, if the template does not end all turns with the same token. The token
            before tool results may differ from the token after an answer.
        renders_turns_exactly: Whether the template renders an earlier turn exactly as the model wrote it. If not, the
            prompt of each turn is rendered again, and a rollout has a segment for each turn.
        call_id_format: Format string of call ids in earlier turns, with the fields `name` and `index`.
        write_calls: Function that writes calls as text, for templates that do not render calls.
    """

    name: str
    tool_parser: str | None
    reasoning_parser: str | None = None
    call_syntaxes: tuple[CallSyntax, ...] = ()
    message_syntax: MessageSyntax | None = None
    call_mark: str | None = None
    reasoning_delimiters: tuple[str, str] = ("<think>", "</think>")
    reasoning_prefix: str = ""
    stop_tokens: tuple[str, ...] = ()
    renders_turns_exactly: bool = True
    call_id_format: str = "call{index:05d}"
    write_calls: WriteCalls | None = None
