"""Why a batch teaches nothing: what nearly all of its rollouts have in common, and what to do about it, in words.

The cause is decided by types and counts, never by the text of a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainer.events import Cause
from trainer.loop.buffer import Batch
from trainer.types import Group, Rollout, ToolResult

NEARLY_ALL = 0.9
"""Share of the rollouts, or of their calls, that a cause must explain."""
ERROR_CHARS = 200
KINDS = {"all_right": "all right", "all_wrong": "all wrong", "equal": "with equal grades"}
WORDS: Mapping[Cause, tuple[str, str]] = {
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
        what, remedy = WORDS[self.cause]
        error = f" ({self.error})" if self.error else ""
        return f"{what.format(name=repr(self.name))}{error}; {remedy}"


def how_many(without_signal: Mapping[str, float], num_lost: int) -> str:
    """The groups of a batch without signal, in words: `7 of 8 groups all wrong, 1 lost`."""
    total = sum(without_signal.values()) + num_lost
    counts = [(n, KINDS.get(kind, kind)) for kind, n in without_signal.items()] + [(num_lost, "lost")]
    first, *others = [(n, kind) for n, kind in sorted(counts, reverse=True) if n] or [(0, "graded")]
    groups = f"{first[0]:.0f} of {total:.0f} groups {first[1]}"
    return ", ".join([groups, *(f"{n:.0f} {kind}" for n, kind in others)])


def diagnose(batch: Batch) -> Diagnosis:
    """The cause that explains nearly all rollouts of a batch without signal; the first one that does."""
    groups = batch.all_groups
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    kinds = batch.without_signal
    if not rollouts or batch.num_lost > kinds.total():
        return Diagnosis("discarded", _most([d.endpoint or d.reason for group in groups for d in group.discarded]))
    if kinds["all_right"] >= NEARLY_ALL * kinds.total():
        return Diagnosis("all_right")
    guards = [rollout.grade.guard for rollout in rollouts if rollout.grade.guard is not None]
    if _explains(guards, rollouts):
        return Diagnosis("guarded", _most(guards))
    if _explains([r for r in rollouts if r.finish in ("max_tokens", "context")], rollouts):
        return Diagnosis("cut_off")
    if (calls := _of_calls(groups)) is not None:
        return calls
    if _explains([r for r in rollouts if r.finish == "max_steps"], rollouts):
        return Diagnosis("out_of_turns")
    return _of_grades(groups, rollouts)


def _of_calls(groups: Sequence[Group]) -> Diagnosis | None:
    """What is wrong with the calls, if that explains it."""
    able = [rollout for group in groups if group.request.task.tools for rollout in group.rollouts]
    pairs = [pair for r in able for pair in zip(r.calls, r.results, strict=True)]
    if able and not pairs:
        return Diagnosis("no_calls")
    causes: dict[str, Cause] = {
        "malformed_call": "malformed_calls",
        "unknown_tool": "unknown_tools",
        "invalid_arguments": "invalid_arguments",
        "tool_error": "tool_errors",
    }
    for error, cause in causes.items():
        failed = [(call.name, result) for call, result in pairs if result.error == error]
        if pairs and _explains(failed, pairs):
            name = _most([called for called, _ in failed])
            return Diagnosis(cause, name, _answer(result for called, result in failed if called == name))
    return None


def _of_grades(groups: Sequence[Group], rollouts: Sequence[Rollout]) -> Diagnosis:
    alike = [group for group in groups if len({_said(rollout) for rollout in group.rollouts}) == 1]
    if _explains(alike, [group for group in groups if group.rollouts]):
        return Diagnosis("same_answers")
    grades = {round(rollout.grade.value, 6) for rollout in rollouts}
    if grades == {0.0}:
        return Diagnosis("too_hard")
    return Diagnosis("constant_grade" if len(grades) == 1 else "decided_rows")


def _said(rollout: Rollout) -> tuple[str, ...]:
    return (rollout.answer, *(f"{call.name} {call.arguments}" for call in rollout.calls))


def _answer(results: Iterable[ToolResult]) -> str:
    return " ".join(_most([result.output for result in results]).split())[:ERROR_CHARS]


def _most(names: Sequence[str]) -> str:
    return Counter(names).most_common(1)[0][0] if names else ""


def _explains(some: Sequence[object], of: Sequence[object]) -> bool:
    return len(some) >= NEARLY_ALL * len(of) > 0
