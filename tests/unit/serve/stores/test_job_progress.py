"""How far a job is and what it is compared with, from the events that a driver writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent_rft.events import Evaluated, Event, LossEvaluated
from agent_rft.serve.jobs.processes.wire_metrics import make_wire_data
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.job_progress import MeasuredProgress
from agent_rft.trainer.loop.evaluation import summarize
from tests.support.events import run_event
from tests.support.jobs import NEW_JOB, StoredJobs
from tests.support.synthetic import Synthetic


class Job(StoredJobs):
    """A job, as its driver reports it."""

    def __init__(self, database: Database, validation_file: str | None = "file-2") -> None:
        super().__init__(database)
        self.record, _ = self.store.create(replace(NEW_JOB, validation_file=validation_file))

    def happened(self, event: Event) -> None:
        seen = run_event(event)
        data = {"kind": seen.kind, "version": seen.version, "step": seen.step, **seen.data}
        self.store.add_event(self.record.id, "info", seen.message, data=data)

    def graded(self, step: int, skill: float, name: str = "validation") -> float:
        evaluation = summarize(Synthetic().groups(8, 2, "validation", step, skill), 2, 1.0)
        self.happened(Evaluated(step=step, name=name, evaluation=evaluation))
        return evaluation.reward

    def step(self, number: int, **metrics: float) -> None:
        data = make_wire_data({"step": float(number), "total_steps": 9.0, **metrics})
        self.store.add_event(self.record.id, "info", f"Step {number}/9", type="metrics", data=data)

    @property
    def progress(self) -> MeasuredProgress | None:
        return self.store.progress(self.record)


def test_the_last_validation_is_compared_with_the_one_before_the_first_step(any_database: Database) -> None:
    job = Job(any_database)
    assert job.progress is None
    job.graded(0, 0.9, "test-before")
    baseline = job.graded(0, 0.1)
    assert job.progress == MeasuredProgress("reward", 0, None, None, baseline, baseline, "validation")
    job.step(1, train_mean_reward=0.2)
    now = job.graded(2, 0.9)
    job.step(2, train_mean_reward=0.3)
    job.step(3, train_mean_reward=0.4)
    job.graded(9, 0.0, "test-after")
    assert job.progress == MeasuredProgress("reward", 3, 9, 0.4, now, baseline, "validation")


def test_without_a_validation_file_the_last_step_is_compared_with_the_first(any_database: Database) -> None:
    job = Job(any_database, validation_file=None)
    job.step(1, train_mean_reward=0.2)
    job.step(2, train_mean_reward=0.5)
    assert job.progress == MeasuredProgress("reward", 2, 9, 0.5, None, 0.2, "train")


def test_a_job_that_was_never_validated_before_its_first_step_has_that_step_as_baseline(any_database: Database) -> None:
    job = Job(any_database)
    job.step(1, train_mean_reward=0.2)
    now = job.graded(4, 0.5)
    assert job.progress == MeasuredProgress("reward", 1, 9, 0.2, now, 0.2, "train")


@pytest.mark.parametrize("validation_file", [None, "file-2"])
def test_a_supervised_job_has_losses(any_database: Database, validation_file: str | None) -> None:
    job = Job(any_database, validation_file)
    job.step(1, loss=2.0)
    if validation_file is not None:
        job.happened(LossEvaluated(step=1, loss=1.5, num_rows=4))
    job.step(2, loss=1.0)
    validation = None if validation_file is None else 1.5
    assert job.progress == MeasuredProgress("loss", 2, 9, 1.0, validation, 2.0, "train")


def test_events_of_a_version_without_kinds_are_no_baseline(any_database: Database) -> None:
    job = Job(any_database)
    older: dict[str, Any] = {"step": 0, "reward": 0.5}
    job.store.add_event(job.record.id, "info", "validation at step 0", data=older)
    job.step(1, train_mean_reward=0.2)
    assert job.progress == MeasuredProgress("reward", 1, 9, 0.2, None, 0.2, "train")
