"""What a driver writes to the store: events under the contract's names, and the checkpoints on disk."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy.exc import OperationalError

from agent_rft.errors import UserError
from agent_rft.events import (
    CheckpointSaved,
    ComponentFailed,
    EarlyStopped,
    EngineReplaced,
    EngineRestarted,
    EngineUnstable,
    Event,
    JobEnded,
    Notice,
    PhaseStarted,
    RolloutDiscarded,
    RolloutsProgressed,
    SinkCutOff,
    StepDone,
    TrackerFailed,
    ZeroVarianceBatch,
)
from agent_rft.metrics.missing_rollouts import ValidationScore
from agent_rft.serve.jobs.processes.store_sink import StoreSink
from agent_rft.serve.stores.model_registry import ModelRecord, ModelRegistry
from agent_rft.trainer.loop.checkpoint import Checkpoints, LoopState
from tests.support.events import run_event, stream_of
from tests.support.jobs import NEW_JOB, StoredJobs, database_with_tables


class RunningJob(StoredJobs):
    """A job whose driver writes through `sink`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(database_with_tables(folder))
        self.folder = folder / "run"
        self.registry = ModelRegistry(self.database, {})
        self.job_id = self.store.create(NEW_JOB)[0].id
        for status in ("queued", "running"):
            self.store.move(self.job_id, status)  # type: ignore[arg-type]
        self.store.next_attempt(self.job_id, 0, "handle", failures=2)
        self.sink = self.new_sink()

    def new_sink(self, registry: ModelRegistry | None = None) -> StoreSink:
        def name(step: int | None) -> str:
            return "ft:final" if step is None else f"ft:{step}"

        names = {str(self.folder): "the run"}
        return StoreSink(
            self.store, registry or self.registry, self.job_id, 1, "gpt-5", "key-1", self.folder, name, names
        )

    def save(self, step: int, reward: float | None, metrics: dict[str, float] | None = None, **state: Any) -> None:
        """Save a checkpoint and emit its event."""

        async def nothing(path: Path) -> None: ...

        known = metrics_of(step, reward or 0.0) if metrics is None else metrics
        saving = Checkpoints(self.folder / "checkpoints").save(
            LoopState(step, step, 0, [], 100 * step, reward, known, **state), nothing
        )
        path = asyncio.run(saving)
        saved = CheckpointSaved(step=step, path=str(path), num_bytes=1, valid_reward=reward)
        stream_of(self.sink).emit(saved)

    def step(self, step: int, reward: float) -> None:
        stream_of(self.sink).emit(StepDone(step=step, total_steps=10, metrics=metrics_of(step, reward)))


def metrics_of(step: int, reward: float) -> dict[str, float]:
    metrics = {"step": float(step), "total_steps": 10.0, "train_mean_reward": reward, "time_step_s": 5.0}
    return metrics | {"full_valid_mean_reward": reward, "tool/search/output_tokens_mean": 7.0}


@pytest.fixture
def running(tmp_path: Path) -> RunningJob:
    return RunningJob(tmp_path)


def test_only_the_best_three_checkpoints_and_the_last_are_models(running: RunningJob) -> None:
    for step, reward in enumerate((0.9, 0.1, 0.8, 0.7, 0.2), start=1):
        running.save(step, reward)
        running.step(step, reward)
    running.sink.close()
    kept, _ = running.store.checkpoints(running.job_id)
    assert [(c.step, c.model) for c in kept][::-1] == [(1, "ft:1"), (3, "ft:3"), (4, "ft:4"), (5, "ft:5")]
    assert {c.step: c.metrics["full_valid_mean_reward"] for c in kept}[3] == 0.8
    assert sorted(m.id for m in running.registry.list()) == ["ft:1", "ft:3", "ft:4", "ft:5"]
    with pytest.raises(UserError):
        running.registry.resolve("ft:2")
    assert running.registry.resolve("ft:5").folder.endswith("step-000005")


def test_a_checkpoint_that_is_only_to_resume_from_is_no_model(running: RunningJob) -> None:
    running.save(1, 0.5)
    running.save(2, None, is_servable=False)
    running.sink.close()
    assert [c.step for c in running.store.checkpoints(running.job_id)[0]] == [1]
    assert running.store.get(running.job_id).trained_tokens == 200
    assert running.sink.register_final() == "ft:final"
    assert running.registry.resolve("ft:final").folder.endswith("step-000001")


def test_the_best_checkpoint_becomes_the_model_of_a_job_that_stopped_early(running: RunningJob) -> None:
    for step, reward in ((1, 0.1), (2, 0.9), (3, 0.2), (4, 0.3)):
        running.save(step, reward)
    stream_of(running.sink).emit(EarlyStopped(step=4, best_step=2, best_reward=0.9, total_steps=10))
    running.sink.close()
    assert running.sink.register_final() == "ft:final"
    assert running.registry.resolve("ft:final").folder.endswith("step-000002")
    stopped = [event for event in running.store.events(running.job_id)[0] if event.message.startswith("stopped early")]
    assert [event.message for event in stopped] == [
        "stopped early, after 4 of 10 steps: the validation reward did not improve; "
        "the best checkpoint is step-000002, with a validation reward of 0.900"
    ]


def test_the_last_checkpoint_becomes_the_tuned_model(running: RunningJob) -> None:
    assert running.sink.register_final() is None
    running.save(1, 0.9)
    running.save(2, 0.1)
    running.sink.close()
    assert running.sink.register_final() == "ft:final"
    assert running.registry.resolve("ft:final").folder.endswith("step-000002")


def test_a_step_becomes_a_metrics_event_and_updates_the_job(running: RunningJob) -> None:
    running.save(1, 0.5)
    running.step(1, 0.5)
    running.sink.close()
    (metrics,) = [event for event in running.store.events(running.job_id)[0] if event.type == "metrics"]
    assert metrics.data is not None and metrics.data["train_mean_reward"] == 0.5
    assert metrics.data["tools"] == {} and metrics.data["tool/search/output_tokens_mean"] == 7.0
    job = running.store.get(running.job_id)
    assert job.trained_tokens == 100 and job.estimated_finish is not None
    assert job.failures == 0, "drivers lost before a new checkpoint no longer count"


def test_a_checkpoint_whose_driver_was_killed_before_storing_it_is_added_later(running: RunningJob) -> None:
    running.save(1, 0.5)
    running.sink.close()
    running.store.drop_checkpoint(running.job_id, 1)  # as if it had been killed before
    again = running.new_sink()
    again.sync_checkpoints()
    assert [c.step for c in running.store.checkpoints(running.job_id)[0]] == [1]


def test_writes_are_completed_once_an_unavailable_database_is_back(running: RunningJob) -> None:
    class Unreliable(ModelRegistry):
        """Fails on the first call of each method."""

        called: ClassVar[set[str]] = set()

        def add(self, *arguments: Any) -> ModelRecord:
            return self._fail_once("add") or super().add(*arguments)

        def delete(self, model_id: str) -> None:
            return self._fail_once("delete") or super().delete(model_id)

        def _fail_once(self, method: str) -> None:
            if method not in self.called:
                self.called.add(method)
                raise OperationalError("", None, Exception("the database is locked"))

    running.sink = running.new_sink(Unreliable(running.database, {}))
    for step, reward in enumerate((0.9, 0.1, 0.8, 0.7), start=1):
        running.save(step, reward)
    running.sink.close()
    assert sorted(model.id for model in running.registry.list()) == ["ft:1", "ft:3", "ft:4"]
    assert sorted(c.model for c in running.store.checkpoints(running.job_id)[0]) == ["ft:1", "ft:3", "ft:4"]


def test_events_contain_no_secrets_of_urls(running: RunningJob) -> None:
    stream = stream_of(running.sink)
    stream.emit(Notice(text="https://me:pw-secret@x.example/y?key=q-secret is slow"))
    stream.emit(PhaseStarted(phase="resources", detail="2 cores requested, 1 free"))
    running.sink.close()
    events, _ = running.store.events(running.job_id)
    assert len(events) == 2 and "secret" not in str(events) and "x.example/y" in str(events)


def test_events_contain_no_paths_and_no_errors_of_programs(running: RunningJob) -> None:
    stream = stream_of(running.sink)
    private: list[Event] = [
        EngineReplaced(engine="engine-0", reason="OSError: /dev/x"),
        EngineRestarted(engine="engine-0", reason="OSError: /dev/x"),
        EngineUnstable(engine="engine-0", times=3, reason="OSError: /dev/x"),
        ComponentFailed(component="watchdog", error="OSError: /dev/x"),
        SinkCutOff(sink="a.b", reason="OSError: /dev/x"),
        TrackerFailed(tracker="wandb", cause="not_allowed", reason="OSError: /dev/x"),
        Notice(text=f"{running.folder}/x is slow"),
    ]
    for event in private:
        stream.emit(event)
    running.save(1, 0.5)
    running.sink.close()
    events, _ = running.store.events(running.job_id)
    assert "OSError" not in str(events) and str(running.folder) not in str(events)
    assert {(event.data or {})["kind"]: event.message for event in events} == {
        "engine_replaced": "engine-0 is being replaced",
        "engine_restarted": "engine-0 is being restarted",
        "engine_unstable": "engine-0 was replaced 3 times in a row without a weight update in between",
        "component_failed": "the watchdog failed",
        "sink_cut_off": "the sink a.b was disconnected and gets no more events",
        "tracker_failed": "wandb gets no more metrics of this run: the operator has not set it up",
        "notice": "the run/x is slow",
        "checkpoint_saved": "checkpoint step-000001",
    }


def test_checkpoints_of_a_supervised_job_without_validation_have_the_loss(running: RunningJob) -> None:
    running.save(1, None, {"step": 1.0, "total_steps": 2.0, "loss": 0.7, "time_step_s": 5.0})
    running.sink.close()
    (checkpoint,), _ = running.store.checkpoints(running.job_id)
    assert checkpoint.metrics == {"step": 1.0, "train_loss": 0.7}


def test_the_progress_of_a_step_is_stored_once_in_half_a_minute(running: RunningJob) -> None:
    event = run_event(RolloutsProgressed(purpose="train", ended=17, total=32, in_flight=15))
    for at in (0.0, 29.0, 30.0, 59.0, 61.0):
        running.sink.handle_event(replace(event, time=event.time + at))
    running.sink.close()
    messages = [found.message for found in running.store.events(running.job_id)[0]]
    assert len([message for message in messages if "rollouts: 17/32 ended" in message]) == 3


def test_events_contain_no_rows_and_no_answers(running: RunningJob) -> None:
    stream = stream_of(running.sink)
    shown = {
        "newest_answer": "SECRET",
        "newest_calls": ("search SECRET",),
        "newest_row": "7-SECRET",
        "newest_grade": 0.5,
    }
    stream.emit(RolloutsProgressed(purpose="train", ended=1, total=2, in_flight=1, slowest_row="8-SECRET", **shown))
    lost = {
        "num_lost": 0,
        "zero_variance": {"all_wrong": 8.0},
        "cause": "tool_errors",
        "name": "cat",
        "error": "SECRET",
    }
    stream.emit(ZeroVarianceBatch(step=1, times=1, discarded={}, **lost))
    running.sink.close()
    events, _ = running.store.events(running.job_id)
    assert len(events) == 2 and "SECRET" not in str([(event.message, event.data) for event in events])
    assert "'cat' were answered with an error; " in str([event.message for event in events])


def test_events_for_the_run_folder_only_are_not_stored(running: RunningJob) -> None:
    stream = stream_of(running.sink)
    stream.emit(
        RolloutDiscarded(trace_id="t", row_id="1", sample=0, purpose="train", reason="tool_failed", cause="HTTP 503")
    )
    stream.emit(PhaseStarted(phase="checkpoint"))
    stream.emit(JobEnded(outcome="failed", error="which the job's state has"))
    running.sink.close()
    assert running.store.events(running.job_id)[0] == []


def test_the_best_checkpoint_is_marked(running: RunningJob) -> None:
    def marked() -> dict[int, float | None]:
        checkpoints, _ = running.store.checkpoints(running.job_id)
        return {c.step: c.metrics.get("is_best") for c in checkpoints}

    def score(reward: float, num_missing: int) -> ValidationScore:
        return ValidationScore({"a": reward}, num_rows=10, num_missing=num_missing)

    running.save(1, None)
    running.save(2, 0.9, score=score(0.9, 5))
    running.sink.sync_checkpoints()
    assert marked() == {1: None, 2: 1.0}, "no better validation so far"
    running.save(3, 0.4, score=score(0.4, 0))
    running.sink.close()
    assert marked() == {1: None, 2: None, 3: 1.0}, "the validation of step 2 lacks too many rows"


def test_without_a_validation_no_checkpoint_is_marked_as_the_best(running: RunningJob) -> None:
    running.save(1, None)
    running.sink.close()
    [checkpoint], _ = running.store.checkpoints(running.job_id)
    assert "is_best" not in checkpoint.metrics
