"""Rows are drawn once, in portions, so that a stopped run resumes; answers are graded twice, the best exported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agent_rft.actors.engine.chat.turn_parsers import ParsedTurn
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.run.readiness_check import (
    ROWS_PER_CHUNK,
    grade_again,
    rejection_sampling,
    sample_rows,
    write_rejection_samples,
)
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from agent_rft.types import Group, Task, ToolCall, ToolResult, ToolSchema, Turn
from tests.support.builders import group, group_request, job, rollout, task, untrained

TASKS = [task(f"{number}-x", reference_answer="text") for number in range(1, ROWS_PER_CHUNK + 7)]


class Drawing:
    """Draws two rollouts of each row and writes them to the folder, as a run does; stops after some portions."""

    def __init__(self, folder: RunFolder, stop_after: int = 99) -> None:
        self.folder = folder
        self.rows: list[str] = []
        self._left = stop_after

    async def __call__(self, tasks: Sequence[Task], name: str) -> list[Group]:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        groups = [group(group_request(i, 2, "test", task=t), [0.0, 1.0]) for i, t in enumerate(tasks)]
        self.rows += [t.row_id for t in tasks]
        self.folder.handle_groups(name, groups)
        return groups


async def test_a_stopped_run_goes_on_with_the_rows_that_are_missing(tmp_path: Path) -> None:
    first = RunFolder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        await sample_rows(TASKS, 2, first, Drawing(first, stop_after=1))
    first.close()
    again = RunFolder(tmp_path)
    drawing = Drawing(again)
    groups, _ = await sample_rows(TASKS, 2, again, drawing)
    again.close()
    assert drawing.rows == [t.row_id for t in TASKS[ROWS_PER_CHUNK:]]
    assert [g.request.task.row_id for g in groups] == [t.row_id for t in TASKS]
    assert sorted(again.rollout_names()) == ["ready-000001", "ready-000002"]


async def test_draws_of_another_size_do_not_count(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    await sample_rows(TASKS[:3], 2, folder, Drawing(folder))
    folder.close()
    more = RunFolder(tmp_path)
    drawing = Drawing(more)
    await sample_rows(TASKS[:3], 3, more, drawing)
    more.close()
    assert len(drawing.rows) == 3


async def test_the_time_of_a_rollout_is_that_of_what_was_drawn_now(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    times = iter([100.0, 106.0])
    _, rollout_s = await sample_rows(TASKS[:3], 2, folder, Drawing(folder), clock=lambda: next(times))
    folder.close()
    assert rollout_s == 1.0
    done = RunFolder(tmp_path)
    assert (await sample_rows(TASKS[:3], 2, done, Drawing(done)))[1] is None


async def test_answers_are_graded_again_without_the_guards() -> None:
    guard = {"name": "long", "grader": {"type": "length", "max_chars": 1}}
    spec = job({"guards": [guard]}).reinforcement
    groups = [group(group_request(task=TASKS[0]), [0.0, 0.25])]
    again = await grade_again(groups, spec, DEFAULT_CONFIG)
    assert again == {rollout.trace_id: 1.0 for rollout in groups[0].rollouts}


async def test_an_answer_that_cannot_be_graded_again_has_no_second_grade() -> None:
    groups = [group(group_request(task=task("1")), [0.0, 1.0])]  # the row has no reference
    again = await grade_again(groups, job().reinforcement, DEFAULT_CONFIG)
    assert list(again.values()) == [None, None]


# -- the best draws ----------------------------------------------------------------------------------------------------


def read(token_ids: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedTurn:
    return ParsedTurn(f"said {list(token_ids)}", (("search", "{}"),) if tools else ())


def test_the_draw_with_the_highest_reward_that_passes_is_exported(tmp_path: Path) -> None:
    request = group_request(task=TASKS[0])
    draws = [
        rollout(request, 0, 1.0, reward=0.7),
        rollout(request, 1, 1.0, sampled=5, reward=0.9),
        rollout(request, 2, 1.0, sampled=2, reward=0.9),
        rollout(request, 3, 0.5, reward=1.0),
        rollout(request, 4, 1.0, reward=1.0, finish="max_tokens"),
    ]
    failed = group(group_request(1, task=TASKS[1]), [0.0, 0.0])
    groups = [replace(group(request, []), rollouts=tuple(draws)), failed]
    path = tmp_path / "new" / "sft.jsonl"
    assert write_rejection_samples(path, groups, 1.0, read) == 1
    (row,) = map(json.loads, path.read_text().splitlines())
    assert row == {"messages": [*TASKS[0].messages, {"role": "assistant", "content": "said [2, 3]"}]}


def test_calls_and_results_are_messages_of_the_row() -> None:
    tool = {"type": "function", "function": {"name": "search"}}
    request = group_request(task=task("1", tools=[tool]))
    turn = Turn(2, 5, "raw", (ToolCall("c1", "search", "{}"),), (ToolResult("c1", "found"),))
    good = rollout(request, 0, 1.0, turns=(turn,))
    (row,) = rejection_sampling([replace(group(request, []), rollouts=(good,))], 1.0, read)
    asked, answered = row["messages"][1:]
    assert asked["tool_calls"][0]["function"] == {"name": "search", "arguments": "{}"}
    assert answered == {"role": "tool", "tool_call_id": "c1", "name": "search", "content": "found"}
    assert row["tools"] == [tool]


def test_a_draw_with_a_mistake_in_a_call_is_not_imitated() -> None:
    request = group_request()
    turn = Turn(2, 5, "raw", (ToolCall("c1", "find", "{}"),), (ToolResult("c1", "?", "unknown_tool"),))
    bad = rollout(request, 0, 1.0, turns=(turn,))
    assert list(rejection_sampling([replace(group(request, []), rollouts=(bad,))], 1.0, read)) == []


def test_rollout_that_is_not_trained_on_is_not_imitated() -> None:
    request = group_request()
    bad = untrained(rollout(request, 0, 1.0))
    assert list(rejection_sampling([replace(group(request, []), rollouts=(bad,))], 1.0, read)) == []
