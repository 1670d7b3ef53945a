"""A job's metrics under the names of the wire contract."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

from agent_rft.serve.jobs.processes.wire_metrics import (
    checkpoint_metrics,
    format_metrics,
    make_wire_data,
    result_csv,
)
from agent_rft.trainer.loop.evaluation import summarize
from agent_rft.trainer.loop.rl_metrics import rollout_metrics
from agent_rft.types import ToolCall, ToolResult, Turn
from tests.support import builders
from tests.support.synthetic import Synthetic

WIRE_KEYS = {
    "step", "total_steps", "train_mean_reward", "full_valid_mean_reward", "reasoning_tokens_mean",
    "completion_tokens_mean", "valid_reasoning_tokens_mean", "mean_unresponsive_rewards", "scores", "usage", "errors",
    "timing", "model_graders_token_usage", "tools",
}  # fmt: skip
STEP = {
    "step": 10.0,
    "total_steps": 20.0,
    "train_mean_reward": 0.42,
    "completion_tokens_mean": 25.0,
    "rollouts_graded": 8.0,
    "grader/exact/score_mean": 0.5,
    "judge_tokens/judge": 300.0,
    "discarded/grader_failed": 2.0,
    "tool/search/calls_mean": 1.5,
    "tool/search/latency_s_mean": 0.2,
    "tool/search/errors": 1.0,
    "time_wait_s": 4.0,
    "time_learn_s": 2.0,
    "time_step_s": 7.0,
    "grade_latency_s_mean": 0.1,
    "loss": math.nan,
}


def test_the_message_of_a_metrics_event_follows_the_contract() -> None:
    text = format_metrics(STEP | {"full_valid_mean_reward": 0.68})
    assert text.startswith("Step 10/20, train mean reward=0.42, full validation mean reward=0.68")
    assert "loss" not in text, "numbers that are not finite are not shown"


def test_the_data_of_a_metrics_event_has_every_field_of_the_contract_with_null_if_not_measured() -> None:
    data = make_wire_data(STEP | {"tool/search/output_tokens_mean": 12.5, "valid_reasoning_tokens_mean": 3.0})
    assert data.keys() >= WIRE_KEYS
    assert (data["step"], data["total_steps"], data["full_valid_mean_reward"]) == (10, 20, None)
    assert data["scores"]["graders"] == [{"name": "exact", "train_reward_mean": 0.5}]
    assert data["usage"] == {
        "samples": {"rollouts": 8.0, "completion_tokens": 200},
        "graders": [{"model": "judge", "tokens": 300.0}],
    }
    assert data["errors"] == {"graders": 2.0}
    assert data["timing"]["step"] == {"sampling": 4.0, "training": 2.0, "eval": None, "full_iteration": 7.0}
    tool = {"calls_per_rollout_mean": 1.5, "tokens_per_call_mean": 12.5, "latency_s_mean": 0.2, "errors": 1.0}
    assert data["tools"] == {"search": tool}
    json.dumps(data, allow_nan=False)


def test_a_checkpoint_has_the_metrics_of_its_step() -> None:
    data = make_wire_data(STEP | {"full_valid_mean_reward": 0.68})
    assert checkpoint_metrics(data) == {"step": 10.0, "train_mean_reward": 0.42, "full_valid_mean_reward": 0.68}


def test_tool_tokens_between_two_segments_are_unknown() -> None:
    calls, results = (ToolCall("c", "search", "{}"),), (ToolResult("c", "found"),)
    turns = (Turn(2, 5, "", calls, results), Turn(9, 12, "7", segment=1))
    one = builders.rollout(builders.group_request())
    metrics = rollout_metrics([replace(one, segments=one.segments * 2, turns=turns)])
    assert metrics["tool/search/calls_mean"] == 1.0
    assert "tool/search/output_tokens_mean" not in metrics


def test_a_few_slow_rollouts_show_in_the_95th_percentile_and_not_in_the_median() -> None:
    one = builders.rollout(builders.group_request())
    times = [1.0] * 18 + [60.0] * 2
    metrics = rollout_metrics([replace(one, wall_s=wall_s) for wall_s in times])
    assert (metrics["rollout_wall_s_p50"], metrics["rollout_wall_s_p95"]) == (1.0, 60.0)


def test_tool_tokens_are_the_tokens_between_turns_divided_by_output_length() -> None:
    world = Synthetic()
    groups = world.groups(3, 4, "train", 1, 0.5)
    metrics = rollout_metrics([rollout for group in groups for rollout in group.rollouts])
    total = sum(
        later.start - turn.stop
        for group in groups
        for rollout in group.rollouts
        for turn, later in zip(rollout.turns, rollout.turns[1:], strict=False)
    )
    calls: dict[str, int] = {}
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        for call in rollout.calls:
            calls[call.name] = calls.get(call.name, 0) + 1
    assert math.isclose(sum(metrics[f"tool/{name}/output_tokens_mean"] * n for name, n in calls.items()), total)
    assert summarize(groups, 4, 1.0).reasoning_tokens == 30.0


def test_the_result_file_has_one_line_per_step_and_empty_cells_between_validations() -> None:
    steps = [STEP | {"step": 1.0}, STEP | {"step": 2.0, "full_valid_mean_reward": 0.5}]
    text = result_csv(steps).decode()
    assert text.startswith(
        "step,train_mean_reward,full_valid_mean_reward,completion_tokens_mean,reasoning_tokens_mean,mean_unresponsive_rewards"
    )
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["step"], row["full_valid_mean_reward"]) for row in rows] == [("1", ""), ("2", "0.5")]
    assert rows[0]["tool/search/calls_mean"] == "1.5"
    supervised = result_csv([{"step": 1.0, "loss": 2.0}, {"step": 2.0, "loss": 1.5, "full_valid_loss": 1.0}]).decode()
    assert supervised == "step,train_loss,full_valid_loss\n1,2.0,\n2,1.5,1.0\n"
    assert result_csv([]).decode().startswith("step,")
