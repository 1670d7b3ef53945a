"""Dialect of a model: the format in which it writes conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

DEFAULT_PARSER = "hermes"
"""Tool parser for runs and models that were created before agent-rft detected parsers."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Conversation format of one model, detected by the check and used by rollouts, checkpoints and serving.

    Attributes:
        family: Name of the model's family.
        tool_parser: Name of the vLLM tool parser that parses the model's calls; None: the model works only without
            tools, and each turn is an answer.
        stop_tokens: Tokens that end a turn, in addition to the tokenizer's EOS token.
        reasoning_delimiters: Tokens that open and close reasoning; None: the model has no reasoning.
        template_arguments: Arguments passed to the chat template in each render.
        chat_template: Chat template that replaces the tokenizer's template; None: the tokenizer's template is used.
    """

    family: str
    tool_parser: str | None
    stop_tokens: tuple[str, ...] = ()
    reasoning_delimiters: tuple[str, str] | None = None
    template_arguments: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Dialect:
        """Create a dialect from the stored result of `asdict`; unknown keys from other versions are ignored."""
        marks = values.get("reasoning_delimiters")
        known = {item.name: values[item.name] for item in fields(cls) if item.name in values}
        return cls(
            **known
            | {
                "stop_tokens": tuple(values.get("stop_tokens", ())),
                "reasoning_delimiters": None if marks is None else (marks[0], marks[1]),
            }
        )


DEFAULT_DIALECT = Dialect("unknown", DEFAULT_PARSER)
"""Dialect that is used if none was detected."""
