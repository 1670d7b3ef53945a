"""The verdict: a case for each reason that decides, and what the JSON has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent_rft.cluster.readiness.data_checks import MAX_PAIRS
from agent_rft.cluster.readiness.readiness_report import SHOWN_GROUPS, Readiness, judge_samples
from agent_rft.problems.readiness_reasons import REASONS, Reason
from agent_rft.types import DiscardedRollout, Grade, Group, Rollout, Task, ToolCall, ToolResult, Turn
from tests.support.builders import group, group_request, job, plan, task

ROWS = 20
TOOL = {"type": "function", "function": {"name": "search"}}
DIFFERENT = [0.0, 1.0, 1.0, 0.0]


def made(
    grades: Sequence[float | None] | Callable[[int], Sequence[float | None]] = DIFFERENT,
    *,
    rows: int = ROWS,
    change: Callable[[Rollout], Rollout] = lambda rollout: rollout,
    tools: Sequence[Any] = (),
    tasks: Sequence[Task] | None = None,
) -> list[Group]:
    tasks = tasks or [task(f"{number}-x", tools=tools, reference=number) for number in range(1, rows + 1)]
    groups = [group(group_request(i, task=t), grades(i) if callable(grades) else grades) for i, t in enumerate(tasks)]
    return [replace(g, rollouts=tuple(map(change, g.rollouts))) for g in groups]


def found(groups: list[Group], again: Mapping[str, float | None] | None = None, **options: Any) -> Readiness:
    tasks = [g.request.task for g in groups]
    others = options.pop("others", {})
    return judge_samples(job(), plan(), tasks, groups, others, samples=4, second_grades=again or {}, **options)


def called(*errors: str | None) -> Callable[[Rollout], Rollout]:
    """The rollout with one call for each error (None: it worked)."""
    calls = tuple(ToolCall(f"c{i}", "search", "{}") for i, _ in enumerate(errors))
    results = tuple(ToolResult(f"c{i}", "out", error, 0.2) for i, error in enumerate(errors))
    return lambda rollout: replace(rollout, turns=(Turn(2, 5, "text", calls, results, 0.1),))


def judged(rollout: Rollout) -> Rollout:
    return replace(rollout, grade=Grade(rollout.grade.value, held_out=1.0 - rollout.grade.value))


CASES: dict[Reason, list[Group]] = {
    Reason.ROLLOUTS_DISCARDED: made([0.0, 1.0, None, None]),
    Reason.TOOLS_FAIL: made(change=called("tool_error", "tool_error", None), tools=[TOOL]),
    Reason.CALLS_INVALID: made(change=called("malformed_call", "invalid_arguments", None), tools=[TOOL]),
    Reason.ANSWERS_CUT: made(change=lambda rollout: replace(rollout, finish="max_tokens")),
    Reason.TOO_FEW_ROWS: made(rows=9),
    Reason.CONTRADICTORY_ROWS: made(tasks=[task(f"{i}-x", f"question {i % 18}", answer=i) for i in range(20)]),
    Reason.GRADER_DISAGREES: made(change=judged),
    Reason.TOO_EASY: made(lambda i: [1.0] * 4 if i else DIFFERENT),
    Reason.NO_DIFFERENCES: made([0.5] * 4),
    Reason.TOO_HARD: made(lambda i: [0.0] * 4 if i > 1 else DIFFERENT),
    Reason.TOOLS_UNUSED: made(tools=[TOOL]),
}


@pytest.mark.parametrize("reason", CASES)
def test_a_reason_is_found_alone_and_decides(reason: Reason) -> None:
    findings = found(CASES[reason])
    deciding = [code for code in findings.codes if REASONS[Reason(code)].verdict is not None]
    assert deciding == [reason]
    assert findings.verdict == REASONS[reason].verdict


def test_rows_whose_draws_differ_are_ready() -> None:
    findings = found(made(change=called(None), tools=[TOOL]))
    assert findings.verdict == "train" and findings.codes[0] == Reason.ENOUGH_SIGNAL
    (tool,) = findings.behavior.tools if findings.behavior else ()
    assert (tool.name, tool.calls, tool.errors, tool.latency_s.median) == ("search", 80, 0, 0.2)


def test_a_noisy_grader_is_to_be_fixed_first() -> None:
    groups = made()
    again = {r.trace_id: 1.0 - r.grade.value for g in groups for r in g.rollouts}
    findings = found(groups, again)
    assert findings.verdict == "fix_first" and Reason.GRADER_NOISY in findings.codes


def test_passing_rows_are_worth_training_where_calls_cost() -> None:
    costly = job({"reward": {"tool_call_penalty": 0.1}})
    groups = made([1.0] * 4, change=lambda r: replace(r, reward=1.0 - 0.1 * r.sample))
    tasks = [g.request.task for g in groups]
    assert judge_samples(costly, plan(), tasks, groups, {}, samples=4, second_grades={}).verdict == "train"
    assert found(groups).codes[0] == Reason.TOO_EASY


def test_what_must_be_fixed_comes_before_a_warm_start() -> None:
    findings = found(made([0.0] * 4, rows=9))
    assert findings.verdict == "fix_first"
    assert findings.codes[:2] == [Reason.TOO_FEW_ROWS, Reason.TOO_HARD]


def test_nothing_graded_is_a_verdict_too() -> None:
    findings = found(made([None] * 4))
    assert findings.verdict == "fix_first" and findings.codes == [Reason.ROLLOUTS_DISCARDED]
    assert findings.behavior is None and findings.estimate.sampling_s is None
    assert json.dumps(findings.as_json(), allow_nan=False)


def test_notes_do_not_decide() -> None:
    groups = made(tasks=[*(task(f"{i}-x", f"what is {i * 7919} plus {i}", answer=i) for i in range(1, 20))])
    near = task("20-x", "what is 7919 plus 1?", answer=1)
    groups.append(group(group_request(19, task=near), DIFFERENT))
    findings = found(groups, others={"test_file": [near]}, target_s=0.05)
    assert findings.verdict == "train"
    notes = {Reason.NEAR_DUPLICATES, Reason.ROWS_SHARED, Reason.GRADER_COARSE, Reason.TOO_SLOW}
    assert notes <= set(findings.codes)
    assert findings.data.near_duplicates == ((1, 20),) and findings.data.shared == {"test_file": 1}


def test_a_larger_group_and_batch_are_advised_where_few_groups_have_a_signal() -> None:
    groups = made(lambda i: [0.0, 0.0, 0.0, 1.0] * 2 if i % 2 else [0.0] * 8, rows=20)
    tasks = [g.request.task for g in groups]
    numbers = plan(num_rows=20, group_size=4)
    findings = judge_samples(job(), numbers, tasks, groups, {}, samples=8, second_grades={}, rollout_s=0.5)
    advised = {setting.setting.rpartition(".")[2]: setting.value for setting in findings.settings}
    assert advised == {"compute_multiplier": 1.0, "batch_size": 16}
    assert findings.estimate.sampling_s == pytest.approx(6 * 2 * 4 * 0.5)


def test_a_limit_of_tokens_that_cuts_answers_is_to_be_raised() -> None:
    groups = made(change=lambda r: replace(r, finish="max_tokens") if r.sample == 0 else r)
    advised = {setting.setting: setting.value for setting in found(groups).settings}
    assert advised["method.reinforcement.limits.max_completion_tokens"] == 8192


def test_the_json_has_codes_messages_and_fixes() -> None:
    values = found(made([0.0] * 4)).as_json(with_rows=False)
    (first, *_) = values["reasons"]
    assert (first["code"], first["decides"]) == ("too_hard", True) and "supervised" in first["fix"]
    assert "rows" not in values and values["shares"]["all_wrong"] == 1.0


def test_discarded_rollouts_are_counted_by_reason() -> None:
    lost = DiscardedRollout("t", "1", 0, "rollout_timeout", "late")
    groups = [replace(g, discarded=(lost,)) for g in made()]
    behavior = found(groups).behavior
    assert behavior is not None and behavior.discarded == {"rollout_timeout": ROWS}


def test_each_reason_says_what_it_means_and_what_to_do() -> None:
    assert set(REASONS) == set(Reason)
    for meaning in REASONS.values():
        assert meaning.meaning.endswith(".") and meaning.fix.endswith(".")


@pytest.mark.parametrize("error", ["tool_error", "malformed_call"])
def test_a_single_call_that_fails_decides_nothing(error: str) -> None:
    groups = made(change=called(None), tools=[TOOL])
    first = replace(groups[0], rollouts=(called(error)(groups[0].rollouts[0]), *groups[0].rollouts[1:]))
    alone = [replace(g, rollouts=tuple(replace(r, turns=()) for r in g.rollouts)) for g in groups[1:]]
    assert not {"tools_fail", "calls_invalid"} & {*found([first, *groups[1:]]).codes}
    only = replace(first, rollouts=(first.rollouts[0], *(replace(r, turns=()) for r in first.rollouts[1:])))
    assert not {"tools_fail", "calls_invalid"} & {*found([only, *alone]).codes}


def test_shared_instructions_make_no_rows_alike_and_pairs_are_bounded() -> None:
    system = {"role": "system", "content": "You are an agent. " * 100}
    asked = [f"{name} of {place}?" for name in ("Capital", "Population", "Area", "River") for place in ("Peru", "Chad")]
    messages = [[system, {"role": "user", "content": question}] for question in asked]
    tasks = [replace(task(f"{i}-x", answer="yes"), messages=m) for i, m in enumerate(messages, 1)]
    assert found(made(tasks=tasks)).data.near_duplicates == ()
    alike = [task(f"{i}-x", f"What does the lamp number {i:04} in our shop cost?", answer="7") for i in range(1, 60)]
    findings = found(made(tasks=alike))
    assert len(findings.data.near_duplicates) == MAX_PAIRS
    assert len(findings.as_json(with_rows=False)["data"]["near_duplicates"]) == SHOWN_GROUPS


def test_few_rows_of_another_file_are_no_reason_and_shared_rows_name_both_files() -> None:
    groups = made(rows=8)
    others = {"training_file": [groups[0].request.task]}
    findings = found(groups, others=others, file="validation_file")
    assert findings.codes[:2] == ["enough_signal", "rows_overlap"]
    assert "1 rows of training_file are also in validation_file" in findings.reasons[1].words
