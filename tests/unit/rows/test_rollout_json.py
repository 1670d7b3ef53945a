"""Tasks and rollouts survive the round trip through JSON exactly, also where no run folder is involved."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from agent_rft.rows.rollout_json import outcome_from_json, outcome_to_json, task_from_json, task_to_json
from agent_rft.types import DiscardedRollout, Grade, Rollout, Segment, Task, ToolCall, ToolResult, Turn
from tests.support.builders import group_request, rollout

ODD = "\ud800 é\x00 <|im_end|>"


def crossed(values: dict[str, Any]) -> dict[str, Any]:
    back: dict[str, Any] = json.loads(json.dumps(values))
    return back


def test_a_rollout_survives_the_round_trip_with_all_its_parts() -> None:
    turns = (
        Turn(
            2, 4, ODD, (ToolCall("call_1", "cat", "{"),), (ToolResult("call_1", ODD, "tool_error", 0.1, 2, True),), 0.5
        ),
        Turn(1, 2, "7", segment=1),
    )
    segments = (
        Segment(
            np.array([2**31 - 1, 0, 5, 6], np.int32),
            np.array([False, False, True, True]),
            np.array([0, 0, -0.1, -30.5], np.float32),
            np.array([-1, -1, 3, 3], np.int32),
        ),
        Segment(
            np.array([2, 7], np.int32),
            np.array([False, True]),
            np.array([0, -1e-42], np.float32),
            np.array([-1, 4], np.int32),
        ),
    )
    grade = Grade(0.5, {"a": 1.0}, 0.1, "copied", ODD, None, "the held-out grader failed", {"judge": 7}, train=False)
    rollout = Rollout(
        "trace_1",
        "row-1",
        1,
        2,
        3,
        segments,
        turns,
        ODD,
        "max_tokens",
        grade,
        -0.25,
        4,
        1.5,
        '{"type": "structural_tag"}',
    )
    values = outcome_to_json(rollout)
    before = json.dumps(values)
    back = outcome_from_json(crossed(values))
    assert isinstance(back, Rollout)
    for was, now in zip(segments, back.segments, strict=True):
        for name in ("token_ids", "loss_mask", "logprobs", "versions"):
            ours, theirs = getattr(was, name), getattr(now, name)
            assert (ours.dtype, ours.tobytes()) == (theirs.dtype, theirs.tobytes())
    assert (back.turns, back.grade, back.answer, back.reward) == (turns, grade, ODD, -0.25)
    assert (back.finish, back.reasoning_tokens, back.wall_s) == ("max_tokens", 4, 1.5)
    assert back.structure == rollout.structure
    older = outcome_from_json({name: value for name, value in values.items() if name != "structure"})
    assert isinstance(older, Rollout) and older.structure is None
    assert json.dumps(outcome_to_json(back)) == before == json.dumps(values), "reading must not change its input"


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_experts_survive_the_round_trip_where_they_are_asked_for(dtype: Any) -> None:
    experts = (np.arange(12).reshape(3, 2, 2) * 20).astype(dtype)
    arrays = np.arange(3, dtype=np.int32), np.array([False, True, True]), np.zeros(3, np.float32)
    segment = Segment(*arrays, np.zeros(3, np.int32), experts)
    rollout = Rollout("trace_1", "row-1", 0, 0, 0, (segment,), (Turn(1, 3, "7"),), "7", "answer", Grade(1.0), 1.0)
    back = outcome_from_json(crossed(outcome_to_json(rollout, with_experts=True)))
    assert isinstance(back, Rollout) and back.segments[0].experts is not None
    assert back.segments[0].experts.dtype == dtype and (back.segments[0].experts == experts).all()
    in_a_file = outcome_from_json(crossed(outcome_to_json(rollout)))
    assert isinstance(in_a_file, Rollout) and in_a_file.segments[0].experts is None


def test_a_discarded_rollout_and_a_task_survive_the_round_trip() -> None:
    discarded = DiscardedRollout("trace_1", "row-1", 2, "tool_failed", ODD, "tool 'cat'")
    assert outcome_from_json(crossed(outcome_to_json(discarded))) == discarded
    schema = {"type": "function", "function": {"name": "cat", "parameters": {}}}
    task = Task("row-1", ({"role": "user", "content": ODD},), (schema,), {"kind": "mine", "n": 2**70, "deep": [[{}]]})
    assert task_from_json(crossed(task_to_json(task))) == task


def test_a_grade_recorded_before_train_existed_is_trained_on() -> None:
    values = outcome_to_json(rollout(group_request()))
    assert values["grade"].pop("train") is True
    back = outcome_from_json(values)
    assert isinstance(back, Rollout) and back.grade == Grade(1.0)
