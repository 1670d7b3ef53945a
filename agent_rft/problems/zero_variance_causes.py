"""Causes of a batch without learning signal (all groups have zero variance), with a fix for each cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Cause = Literal[
    "discarded",
    "untrained",
    "all_right",
    "guarded",
    "truncated",
    "out_of_turns",
    "no_calls",
    "malformed_calls",
    "unknown_tools",
    "invalid_arguments",
    "tool_errors",
    "same_answers",
    "constant_grade",
    "constant_rows",
    "too_hard",
]
"""Most likely reason why a batch has no signal, derived from the batch's rollouts."""
KIND_NAMES = {"all_right": "all right", "all_wrong": "all wrong", "equal": "with equal rewards"}
ZERO_VARIANCE_CAUSES: Mapping[Cause, tuple[str, str]] = {
    "discarded": (
        "most rollouts were discarded ({name})",
        "fix the endpoint or the problem in parentheses, because discarded rollouts get no grade",
    ),
    "untrained": (
        "the grader answered `train: false` for most rollouts",
        "return `train: false` only for rollouts that must not be trained on",
    ),
    "all_right": (
        "every answer is already right",
        "use harder rows, or set penalties in `reward` to train for fewer calls and tokens",
    ),
    "guarded": (
        "the guard {name} set the rewards of nearly all rollouts",
        "check whether the guard detects only what it should",
    ),
    "truncated": (
        "nearly all rollouts were cut off before they answered",
        "raise limits.max_completion_tokens, limits.rollout_timeout_s or cluster.context_length, or ask for shorter "
        "answers",
    ),
    "out_of_turns": (
        "nearly all rollouts ran out of turns before they answered",
        "raise max_episode_steps, or tell the model in the prompt to answer after a few calls",
    ),
    "no_calls": (
        "no rollout called a tool",
        "check whether the prompt shows the tools, because some chat templates omit tools. If the prompt shows them, "
        "teach the model to call tools with an SFT warm-up",
    ),
    "malformed_calls": (
        "nearly all tool calls could not be parsed",
        "read the calls in the traces: if model_options.tool_parser does not match their syntax, set another parser",
    ),
    "unknown_tools": (
        "nearly all calls name a tool that does not exist, such as {name}",
        "use the same names in the prompt and in the rows' `tools`",
    ),
    "invalid_arguments": (
        "nearly all calls of {name} violate its schema",
        "describe the arguments in the schema and add an example, or change the schema so that it accepts the "
        "arguments that the model sends",
    ),
    "tool_errors": (
        "nearly all calls of {name} were answered with an error",
        "fix the tool, or explain in its description how to call it",
    ),
    "same_answers": (
        "all rollouts of each row are identical",
        "raise algorithm.temperature, or use rows for which the model is less certain: only different answers can be "
        "compared",
    ),
    "constant_grade": (
        "the grader gives all rollouts the same grade",
        "test the grader with right and wrong answers",
    ),
    "constant_rows": (
        "each row gets the same grade in all its rollouts, but the grades of different rows differ",
        "use rows that the model solves sometimes, or raise compute_multiplier for more rollouts per row",
    ),
    "too_hard": (
        "the rollouts differ, but all grades are 0 or lower",
        "check whether the grader gives a right answer a grade above 0. If it does, use easier rows, give partial "
        "credit, or start with an SFT warm-up",
    ),
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The most likely cause of a batch without signal.

    `name` is the name of the tool, guard or endpoint that has the problem, or the reason why rollouts were discarded;
    empty for other causes. `error` is the tool's most frequent error answer; empty if no tool failed.
    """

    cause: Cause
    name: str = ""
    error: str = ""

    def __str__(self) -> str:
        problem, fix = ZERO_VARIANCE_CAUSES[self.cause]
        error = f" ({self.error})" if self.error else ""
        return f"{problem.format(name=repr(self.name))}{error}; {fix}"


def summarize_groups(zero_variance: Mapping[str, float], num_lost: int) -> str:
    """Return a summary of the groups of a zero-variance batch, such as `7 of 8 groups all wrong, 1 lost`."""
    total = sum(zero_variance.values()) + num_lost
    counts = [(n, KIND_NAMES.get(kind, kind)) for kind, n in zero_variance.items()] + [(num_lost, "lost")]
    first, *others = [(n, kind) for n, kind in sorted(counts, reverse=True) if n] or [(0, "graded")]
    groups = f"{first[0]:.0f} of {total:.0f} groups {first[1]}"
    return ", ".join([groups, *(f"{n:.0f} {kind}" for n, kind in others)])
