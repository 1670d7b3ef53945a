"""Two drivers and one run folder: one of them trains, whatever the other one does."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import psutil
import pytest
import yaml

from cluster.records.run_folder import RunFolder
from examples.ledger.services import services
from tests.e2e.command import AGENT_RFT, marked, processes, processes_left
from tests.support.paths import LEDGER
from trainer.data.ownership import files_of

STEPS, BATCH = 6, 8


def job_in(folder: Path) -> Path:
    """An on-policy job: resumed from the same state, it repeats itself to the last bit."""
    job = yaml.safe_load((LEDGER / "job.yaml").read_text())
    job = {key: job[key] for key in ("training_file", "seed", "method")} | {"model": str(LEDGER / "base")}
    with (LEDGER / job["training_file"]).open() as file:
        (folder / "train.jsonl").write_text("".join(islice(file, STEPS * BATCH)))
    job |= {"training_file": "train.jsonl", "cluster": {"checkpoint_interval": {"steps": 2}}}
    reinforcement = job["method"]["reinforcement"]
    reinforcement["hyperparameters"] = {"batch_size": BATCH, "n_epochs": 1, "eval_interval": STEPS}
    reinforcement["algorithm"] = {**reinforcement.get("algorithm", {}), "max_staleness": 0}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return folder / "job.yaml"


@contextmanager
def training(job: Path, run: Path, environment: dict[str, str], *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [AGENT_RFT, "train", str(job), "--run-folder", str(run), *options]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process: subprocess.Popen[str], text: str) -> str:
    """Read what it prints up to a line with the text."""
    assert process.stdout is not None
    read = []
    for line in process.stdout:
        read.append(line)
        if text in line:
            return "".join(read)
    raise AssertionError("".join(read))


def grown(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]


def steps_of(run: Path) -> list[dict[str, float]]:
    """What each step learned from, and how, without what a clock measured."""
    names = ["step", "rollouts_graded", "train_mean_reward", "train_mean_grade", "tool_calls_mean", "loss", "grad_norm"]
    return [{name: metrics[name] for name in names} for metrics in RunFolder(run).metrics()]


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_driver_that_wakes_up_after_another_one_took_its_run_over_changes_nothing(tmp_path: Path) -> None:
    """Its successor's steps, rows and rewards are those of a run that resumes from a copy made when it froze."""
    job, run, copy = job_in(tmp_path), tmp_path / "run", tmp_path / "copy"
    with services() as environment:
        own = marked(environment)
        with training(job, run, own) as frozen:
            until(frozen, f"step 3/{STEPS}")
            family = grown(frozen)
            for one in family:
                one.suspend()
            shutil.copytree(run, copy, symlinks=True)
            with training(job, run, own) as successor:
                until(successor, f"step 5/{STEPS}")
                for one in reversed(family):
                    one.resume()
                said = until(frozen, "has taken over")
                assert frozen.wait(60) == 1 and "another process has taken over" in said
                assert successor.stdout is not None
                rest = successor.stdout.read()
                assert successor.wait(120) == 0, rest
        with training(job, copy, own) as control:
            assert control.stdout is not None
            rest = control.stdout.read()
            assert control.wait(300) == 0, rest
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
    assert files_of(run).resolve().name == "owner-000002"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_second_driver_is_refused_and_one_that_waits_goes_on_after_the_first(tmp_path: Path) -> None:
    job, run = job_in(tmp_path), tmp_path / "run"
    with services() as environment:
        own = marked(environment)
        with training(job, run, own) as first:
            until(first, f"step 2/{STEPS}")
            with training(job, run, own) as second:
                assert second.stdout is not None
                said = second.stdout.read()
                assert second.wait(60) == 1 and "is used by process" in said and "--wait-for-run 10m" in said
            with training(job, run, own, "--wait-for-run", "5m") as third:
                until(third, "waiting for its end")
                first.send_signal(signal.SIGTERM)
                assert first.stdout is not None
                first.stdout.read()
                assert first.wait(120) == 130
                assert third.stdout is not None
                rest = third.stdout.read()
                assert third.wait(300) == 0, rest
        assert [one.pid for one in processes()] == []
    assert [metrics["step"] for metrics in RunFolder(run).metrics()] == list(range(1, STEPS + 1))
