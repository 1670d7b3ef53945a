"""Two drivers and one run folder: one of them trains, whatever the other one does."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.rows.ownership import current_folder
from examples.ledger.services import services
from tests.chaos.jobs import ledger_job, process_tree, read_to_end, read_until, training
from tests.e2e.command import marked, processes, processes_left

STEPS, BATCH = 6, 8


def on_policy_job(folder: Path) -> Path:
    """Write a job that repeats itself to the last bit if it is resumed from the same state."""
    return ledger_job(folder, STEPS, BATCH, max_staleness=0)


def steps_of(run: Path) -> list[dict[str, float]]:
    """What each step learned from, and how, without what a clock measured."""
    names = ["step", "rollouts_graded", "train_mean_reward", "train_mean_grade", "tool_calls_mean", "loss", "grad_norm"]
    return [{name: metrics[name] for name in names} for metrics in RunFolder(run).metrics()]


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_driver_that_wakes_up_after_another_one_took_its_run_over_changes_nothing(tmp_path: Path) -> None:
    """Its successor's steps, rows and rewards are those of a run that resumes from a copy made when it froze."""
    job, run, copy = on_policy_job(tmp_path), tmp_path / "run", tmp_path / "copy"
    with services() as environment:
        own = marked(environment)
        with training(job, run, own) as frozen:
            read_until(frozen, f"step 3/{STEPS}")
            family = process_tree(frozen)
            for one in family:
                one.suspend()
            shutil.copytree(run, copy, symlinks=True)
            with training(job, run, own) as successor:
                read_until(successor, f"step 5/{STEPS}")
                for one in reversed(family):
                    one.resume()
                said = read_until(frozen, "has taken over")
                assert frozen.wait(60) == 1 and "another process has taken over" in said
                code, rest = read_to_end(successor, 120)
                assert code == 0, rest
        with training(job, copy, own) as control:
            code, rest = read_to_end(control, 300)
            assert code == 0, rest
        assert processes_left() == []
    assert steps_of(run) == steps_of(copy)
    assert [metrics["step"] for metrics in RunFolder(run).metrics()] == list(range(1, STEPS + 1))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines]
    resumed_at = steps.index(min(steps[steps.index(3) + 1 :])) if steps.count(3) > 1 else steps.index(3) + 1
    assert steps[resumed_at:] == sorted(set(steps[resumed_at:])), "no step of the first driver is among its successor's"
    folders = [RunFolder(run), RunFolder(copy)]
    for name in folders[0].rollout_names():
        ours, theirs = (
            [[rollout.reward for rollout in group.rollouts] for group in folder.read_groups(name)] for folder in folders
        )
        assert ours == theirs, name
    assert current_folder(run).resolve().name == "owner-000002"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_second_driver_is_refused_and_one_that_waits_goes_on_after_the_first(tmp_path: Path) -> None:
    job, run = on_policy_job(tmp_path), tmp_path / "run"
    with services() as environment:
        own = marked(environment)
        with training(job, run, own) as first:
            read_until(first, f"step 2/{STEPS}")
            with training(job, run, own) as second:
                code, said = read_to_end(second, 60)
                assert code == 1 and "is used by process" in said and "--wait-for-run 10m" in said
            with training(job, run, own, "--wait-for-run", "5m") as third:
                read_until(third, "until this process ends")
                first.send_signal(signal.SIGTERM)
                assert read_to_end(first, 120)[0] == 130
                code, rest = read_to_end(third, 300)
                assert code == 0, rest
        assert [one.pid for one in processes()] == []
    assert [metrics["step"] for metrics in RunFolder(run).metrics()] == list(range(1, STEPS + 1))
