"""The driver's metrics: those of each step and of the rollouts of each split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from prometheus_client import generate_latest

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.run.sinks.metrics_sink import MetricsSink
from agent_rft.events import (
    VALIDATION,
    CheckpointSaved,
    CheckpointStoreFailed,
    EngineReplaced,
    Evaluated,
    JobEnded,
    LearnerRestarted,
    PhaseStarted,
    StepDone,
    TrackerFailed,
)
from agent_rft.types import Evaluation, Group, ToolCall, ToolResult, Turn
from tests.support.builders import group_request, rollout
from tests.support.events import run_event


def samples(sink: MetricsSink) -> dict[str, float]:
    lines = generate_latest(sink.recorder.registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_the_reward_before_training_is_the_baseline_in_a_resumed_run_too(tmp_path: Path) -> None:
    sink, folder = MetricsSink(None, tmp_path), RunFolder(tmp_path)
    for step, reward in ((0, 0.25), (4, 0.5)):
        found = Evaluation(3, 6, 0, 0.5, 0.1, reward, 0.5, 0.5, 2, 3.0, 2.0, 0.0, 20.0, 90.0, 1.0)
        event = run_event(Evaluated(step=step, name=VALIDATION, evaluation=found))
        sink.handle_event(event)
        folder.handle_event(event)
    folder.close()
    for each in (sink, MetricsSink(None, tmp_path)):
        assert samples(each)["agent_rft_baseline_valid_mean_reward"] == 0.25


def test_metrics_of_a_step_are_exported_except_those_of_other_processes(tmp_path: Path) -> None:
    sink = MetricsSink(None, tmp_path)
    assert samples(sink)["agent_rft_time_step_seconds_count"] == 0.0
    step = {"step": 2.0, "train_mean_reward": 0.5, "finish/answer": 3.0, "time_step_s": 2.5, "judge_tokens/qwen": 40.0}
    more = {"endpoint/tool 'search'/calls": 9.0, "rollout_attempts/graded": 4.0, "of_a_later_version": 1.0}
    for metrics in (step | more, step):
        sink.handle_event(run_event(StepDone(step=2, total_steps=9, metrics=metrics)))
    sink.handle_event(run_event(EngineReplaced(engine="engine-0", reason="lost")))
    sink.handle_event(run_event(PhaseStarted(phase="validation")))
    found = samples(sink)
    assert found["agent_rft_train_mean_reward"] == 0.5
    assert found['agent_rft_finish_total{reason="answer"}'] == 6.0
    assert found['agent_rft_judge_tokens_total{model="qwen"}'] == 80.0
    assert (found["agent_rft_time_step_seconds_count"], found["agent_rft_time_step_seconds_sum"]) == (2.0, 5.0)
    assert (found['agent_rft_events_total{level="warn"}'], found['agent_rft_events_total{level="error"}']) == (1.0, 0.0)
    assert 0 < found["agent_rft_disk_free_bytes"] < found["agent_rft_disk_total_bytes"]
    assert not any("endpoint" in name or "account" in name for name in found)


def test_rollouts_are_labeled_with_their_split(tmp_path: Path) -> None:
    sink = MetricsSink(None, tmp_path)
    request = group_request(0, 2, "validation")
    calls = (ToolCall("c1", "search", "{}"), ToolCall("c2", "search", "{}"))
    results = (ToolResult("c1", "one"), ToolResult("c2", "two"))
    turns = (Turn(2, 5, "call", calls, results), Turn(9, 12, "answer"))
    mask = np.array([False, False, *[True] * 3, *[False] * 4, *[True] * 3])
    long = rollout(request, token_ids=np.arange(12), loss_mask=mask, turns=turns, grade=0.25, wall_s=2.0)
    sink.handle_groups("validation-000000", [Group(request, (rollout(request), long))])
    found = samples(sink)
    assert found['agent_rft_grade_bucket{le="0.3",split="validation"}'] == 1.0
    assert found['agent_rft_reward_count{split="validation"}'] == 2.0
    assert found['agent_rft_rollout_calls_sum{split="validation"}'] == 2.0
    assert found['agent_rft_turn_calls_count{split="validation"}'] == 3.0
    tokens = {kind: found[f'agent_rft_rollout_tokens_sum{{kind="{kind}",split="validation"}}'] for kind in KINDS}
    assert tokens == {"prompt": 4.0, "completion": 9.0, "tool": 4.0, "reasoning": 0.0}
    assert found['agent_rft_rollout_wall_seconds_sum{split="validation"}'] == 2.0


def test_the_prompts_of_all_segments_are_counted(tmp_path: Path) -> None:
    sink, request = MetricsSink(None, tmp_path), group_request()
    one = rollout(request)
    sink.handle_groups("step-000001", [Group(request, (replace(one, segments=one.segments * 2),))])
    found = samples(sink)
    tokens = {kind: found[f'agent_rft_rollout_tokens_sum{{kind="{kind}",split="train"}}'] for kind in KINDS}
    assert tokens == {"prompt": 4.0, "completion": 6.0, "tool": 0.0, "reasoning": 0.0}


def test_the_age_of_the_checkpoint_counts_from_the_start_of_training_and_ends_with_it(tmp_path: Path) -> None:
    now = [100.0]
    sink = MetricsSink(None, tmp_path, clock=lambda: now[0])

    def age() -> float | None:
        return samples(sink).get("agent_rft_checkpoint_age_seconds")

    assert age() is None
    sink.handle_event(run_event(PhaseStarted(phase="training")))
    now[0] = 160.0
    sink.handle_event(run_event(PhaseStarted(phase="validation")))
    assert age() == 60.0
    sink.handle_event(run_event(CheckpointSaved(step=5, path="checkpoints/step-000005", num_bytes=123)))
    assert samples(sink)["agent_rft_checkpoint_bytes"] == 123.0
    now[0] = 170.0
    assert age() == 10.0
    sink.handle_event(run_event(PhaseStarted(phase="grading")))
    assert age() is None


def test_the_end_of_a_job_is_counted_by_its_outcome(tmp_path: Path) -> None:
    sink = MetricsSink(None, tmp_path)
    series = [f'agent_rft_jobs_ended_total{{outcome="{outcome}"}}' for outcome in ("done", "stopped", "failed")]
    assert [samples(sink)[name] for name in series] == [0.0, 0.0, 0.0]
    sink.handle_event(run_event(PhaseStarted(phase="training")))
    sink.handle_event(run_event(JobEnded(outcome="failed", error="the disk is full")))
    assert [samples(sink)[name] for name in series] == [0.0, 0.0, 1.0]
    assert "agent_rft_checkpoint_age_seconds" not in samples(sink)


def test_failures_that_alerts_query_are_counted_from_0(tmp_path: Path) -> None:
    sink = MetricsSink(None, tmp_path)
    restarts, copies = "agent_rft_learner_restarts_total", "agent_rft_checkpoint_store_failures_total"
    value = sink.recorder.registry.get_sample_value
    assert (value(restarts), value(copies, {"action": "upload"})) == (0, 0)
    sink.handle_event(run_event(LearnerRestarted(cause="lost", times=1)))
    sink.handle_event(run_event(CheckpointStoreFailed(action="upload", cause="no room")))
    sink.handle_event(run_event(TrackerFailed(tracker="wandb", cause="failed", reason="refused")))
    assert (value(restarts), value(copies, {"action": "upload"})) == (1, 1)
    assert value("agent_rft_tracker_failures_total", {"tracker": "wandb"}) == 1


def test_histograms_of_training_rollouts_begin_at_0_so_that_the_first_step_is_seen(tmp_path: Path) -> None:
    assert samples(MetricsSink(None, tmp_path))['agent_rft_rollout_wall_seconds_count{split="train"}'] == 0.0


KINDS = ("prompt", "completion", "tool", "reasoning")
