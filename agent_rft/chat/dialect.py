"""The dialect of a model: how it writes conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

DEFAULT_PARSER = "hermes"
"""The tool parser of runs and models of versions that did not look for one."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one model writes conversations: found by the check, used by rollouts, checkpoints and serving.

    Attributes:
        family: Name of the model's family.
        tool_parser: Name of the vLLM tool parser that reads its calls; None: the model works without tools only, and
            each turn is an answer.
        end_tokens: Tokens that end a turn, in addition to the tokenizer's end token.
        thought_marks: Tokens that open and close reasoning; None: the model has no reasoning.
        template_arguments: Arguments passed to the chat template each time.
        chat_template: Template used in place of the tokenizer's; None: the tokenizer's.
    """

    family: str
    tool_parser: str | None
    end_tokens: tuple[str, ...] = ()
    thought_marks: tuple[str, str] | None = None
    template_arguments: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Dialect:
        """The dialect whose `asdict` was stored as JSON; keys of other versions are left out."""
        marks = values.get("thought_marks")
        known = {item.name: values[item.name] for item in fields(cls) if item.name in values}
        return cls(
            **known
            | {
                "end_tokens": tuple(values.get("end_tokens", ())),
                "thought_marks": None if marks is None else (marks[0], marks[1]),
            }
        )


UNKNOWN = Dialect("unknown", DEFAULT_PARSER)
"""The dialect of a model of which nothing is known."""
