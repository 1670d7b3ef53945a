"""Causes of a batch without signal, in which all groups have zero variance: what each means and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Cause = Literal[
    "discarded",
    "all_right",
    "guarded",
    "cut_off",
    "out_of_turns",
    "no_calls",
    "malformed_calls",
    "unknown_tools",
    "invalid_arguments",
    "tool_errors",
    "same_answers",
    "constant_grade",
    "decided_rows",
    "too_hard",
]
"""Why the rollouts of a batch teach nothing, as far as they show it."""
KIND_NAMES = {"all_right": "all right", "all_wrong": "all wrong", "equal": "with equal grades"}
CAUSES: Mapping[Cause, tuple[str, str]] = {
    "discarded": (
        "most rollouts were discarded ({name})",
        "get what failed working; discarded rollouts have no grade",
    ),
    "all_right": (
        "every answer is right already",
        "take harder rows, or train only for fewer calls and tokens with penalties in `reward`",
    ),
    "guarded": ("the guard {name} set the rewards of nearly all rollouts", "check whether it finds what it should"),
    "cut_off": (
        "nearly all rollouts were cut off before they answered",
        "raise limits.max_completion_tokens or cluster.context_length, or ask for shorter answers",
    ),
    "out_of_turns": (
        "nearly all rollouts ran out of turns before they answered",
        "raise max_episode_steps, or ask for an answer after a few calls",
    ),
    "no_calls": (
        "no rollout called a tool",
        "check whether the prompt shows the tools (the chat template may not); a model that was never taught to call "
        "tools needs supervised training first",
    ),
    "malformed_calls": (
        "nearly all tool calls could not be read",
        "look at the text of the calls: model_options.tool_parser may not be that of the model's form of calls",
    ),
    "unknown_tools": (
        "nearly all calls name a tool that does not exist, such as {name}",
        "use the same names in the prompt and in the rows' `tools`",
    ),
    "invalid_arguments": (
        "nearly all calls of {name} break its schema",
        "describe the arguments in the schema, with an example, or allow what the model writes",
    ),
    "tool_errors": (
        "nearly all calls of {name} were answered with an error",
        "fix the tool, or say in its description how it is to be called",
    ),
    "same_answers": (
        "the rollouts of each row are all the same",
        "raise algorithm.temperature, or take rows of which the model is less sure: only different answers can be "
        "compared",
    ),
    "constant_grade": (
        "the grader gives all rollouts the same grade",
        "try it on right and wrong answers",
    ),
    "decided_rows": (
        "each row has one grade in all of its tries, and other rows have another",
        "take rows that the model gets right now and then, or raise compute_multiplier for more tries of a row",
    ),
    "too_hard": (
        "the rollouts differ, but none has a grade above 0",
        "check whether the grader gives more for a right answer; else take easier rows, let it give partial credit, or "
        "train supervised first",
    ),
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The most likely cause; `name` is the tool, guard, endpoint or discard reason, `error` what the tool answered."""

    cause: Cause
    name: str = ""
    error: str = ""

    def __str__(self) -> str:
        what, remedy = CAUSES[self.cause]
        error = f" ({self.error})" if self.error else ""
        return f"{what.format(name=repr(self.name))}{error}; {remedy}"


def how_many(without_signal: Mapping[str, float], num_lost: int) -> str:
    """The groups of a batch without signal, in words: `7 of 8 groups all wrong, 1 lost`."""
    total = sum(without_signal.values()) + num_lost
    counts = [(n, KIND_NAMES.get(kind, kind)) for kind, n in without_signal.items()] + [(num_lost, "lost")]
    first, *others = [(n, kind) for n, kind in sorted(counts, reverse=True) if n] or [(0, "graded")]
    groups = f"{first[0]:.0f} of {total:.0f} groups {first[1]}"
    return ", ".join([groups, *(f"{n:.0f} {kind}" for n, kind in others)])
