"""The cause of a batch without signal is what nearly all of its rollouts have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent_rft.problems.zero_variance_causes import ZERO_VARIANCE_CAUSES, Diagnosis, summarize_groups
from agent_rft.trainer.loop.group_buffer import Batch
from agent_rft.trainer.loop.step_checks import ERROR_CHARS, diagnose
from agent_rft.types import DiscardedRollout, Grade, Group, ToolCall, ToolResult, Turn
from tests.support.builders import group, group_request, task, untrained

TOOL = {"type": "function", "function": {"name": "cat"}}


def called(name: str, output: str = "ok", error: str | None = None) -> dict[str, Any]:
    """What changes in a rollout with one call."""
    call = ToolCall("c", name, '{"path": "x"}')
    return {"turns": (Turn(2, 5, "text", (call,), (ToolResult("c", output, error),)),)}


def batch(kind: str, grades: Sequence[float], changes: dict[str, Any], *, but: int = 0, tools: bool = True) -> Batch:
    """Three groups of these grades, whose rollouts are so changed, except for the first `but` ones, which search."""
    skipped: list[tuple[Group, str | None]] = []
    for index in range(3):
        request = replace(group_request(index), task=task(str(index), tools=[TOOL] if tools else []))
        made = group(request, grades)
        rollouts = [
            replace(r, answer=f"answer {r.sample}", **(changes if index or r.sample >= but else called("search")))
            for r in made.rollouts
        ]
        skipped.append((replace(made, rollouts=tuple(rollouts)), kind))
    return Batch([], skipped)


WRONG, HALF, RIGHT = [0.0] * 8, [0.5] * 8, [1.0] * 8
FINE = called("search")


@pytest.mark.parametrize(
    ("kind", "grades", "changes", "expected"),
    [
        ("all_wrong", WRONG, {}, Diagnosis("no_calls")),
        ("all_wrong", WRONG, {"finish": "max_tokens"}, Diagnosis("truncated")),
        ("all_wrong", WRONG, FINE | {"finish": "context"}, Diagnosis("truncated")),
        ("all_wrong", WRONG, FINE | {"finish": "timeout"}, Diagnosis("truncated")),
        ("all_wrong", WRONG, FINE | {"finish": "max_steps"}, Diagnosis("out_of_turns")),
        (
            "all_wrong",
            WRONG,
            called("cat", "no  such\nfile", "tool_error"),
            Diagnosis("tool_errors", "cat", "no such file"),
        ),
        (
            "all_wrong",
            WRONG,
            called("malformed_call", "error: x", "malformed_call"),
            Diagnosis("malformed_calls", "malformed_call", "error: x"),
        ),
        ("all_wrong", WRONG, called("dog", "none", "unknown_tool"), Diagnosis("unknown_tools", "dog", "none")),
        ("equal", HALF, called("cat", "bad", "invalid_arguments"), Diagnosis("invalid_arguments", "cat", "bad")),
        ("equal", HALF, FINE, Diagnosis("constant_grade")),
        ("all_wrong", WRONG, FINE, Diagnosis("too_hard")),
        ("all_right", RIGHT, {}, Diagnosis("all_right")),
        ("equal", HALF, FINE | {"grade": Grade(0.0, guard="no_code")}, Diagnosis("guarded", "no_code")),
    ],
)
def test_a_cause_explains_all_rollouts_or_nearly_all_and_not_fewer(
    kind: str, grades: list[float], changes: dict[str, Any], expected: Diagnosis
) -> None:
    assert diagnose(batch(kind, grades, changes)) == expected
    if expected.cause not in ("no_calls", "all_right", "constant_grade", "too_hard"):
        assert diagnose(batch(kind, grades, changes, but=2)) == expected
        assert diagnose(batch(kind, grades, changes, but=8)) != expected


def test_rollouts_of_rows_without_tools_are_not_blamed_for_calling_none() -> None:
    assert diagnose(batch("all_wrong", WRONG, {}, tools=False)).cause == "too_hard"


def test_rollouts_that_are_all_the_same_are_told_before_the_grader_is_blamed() -> None:
    groups = [group(group_request(index), HALF) for index in range(3)]
    assert diagnose(Batch([], [(made, "equal") for made in groups])).cause == "same_answers"


@pytest.mark.parametrize(("first", "others"), [(RIGHT, WRONG), (WRONG, HALF), ([0.3] * 8, HALF)])
def test_rows_with_one_grade_each_are_not_called_too_hard(first: list[float], others: list[float]) -> None:
    skipped = batch("equal", first, FINE).skipped[:1] + batch("equal", others, FINE).skipped
    assert diagnose(Batch([], skipped)).cause == "constant_rows"


def test_a_batch_that_is_lost_names_why_most_rollouts_were_discarded() -> None:
    lost = tuple(DiscardedRollout("t", "1", i, "grader_failed" if i else "tool_failed", "down") for i in range(8))
    made = replace(group(group_request(), []), discarded=lost)
    assert diagnose(Batch([], [(made, None)])) == Diagnosis("discarded", "grader_failed")


@pytest.mark.parametrize(("num_discarded", "expected"), [(7, "untrained"), (8, "discarded")])
def test_lost_groups_name_the_more_frequent_of_discards_and_untrained_rollouts(
    num_discarded: int, expected: str
) -> None:
    lost = tuple(DiscardedRollout("t", "1", i, "tool_failed", "down") for i in range(num_discarded))
    made = group(group_request(), [0.0, 1.0] * 4)
    made = replace(made, rollouts=tuple(map(untrained, made.rollouts)), discarded=lost)
    assert diagnose(Batch([], [(made, None)])).cause == expected


def test_rollouts_that_are_not_trained_on_explain_no_missing_signal() -> None:
    skipped = batch("all_wrong", WRONG, FINE).skipped
    others = [
        (replace(made, rollouts=(*made.rollouts, *map(untrained, group(made.request, RIGHT).rollouts))), kind)
        for made, kind in skipped
    ]
    assert diagnose(Batch([], others)) == diagnose(Batch([], skipped)) == Diagnosis("too_hard")


def test_what_tools_answer_is_bounded() -> None:
    found = diagnose(batch("all_wrong", WRONG, called("cat", "x" * 10_000, "tool_error")))
    assert len(found.error) == ERROR_CHARS


def test_each_cause_has_words_and_a_fix() -> None:
    for cause, (_, fix) in ZERO_VARIANCE_CAUSES.items():
        assert str(Diagnosis(cause, "cat")).endswith(fix) and fix
    assert str(Diagnosis("tool_errors", "cat", "404")).startswith(
        "nearly all calls of 'cat' were answered with an error (404); "
    )


def test_groups_are_counted_with_the_most_frequent_kind_first() -> None:
    assert summarize_groups({"all_wrong": 8.0}, 0) == "8 of 8 groups all wrong"
    assert (
        summarize_groups({"equal": 1.0, "all_right": 5.0}, 2) == "5 of 8 groups all right, 2 lost, 1 with equal rewards"
    )
