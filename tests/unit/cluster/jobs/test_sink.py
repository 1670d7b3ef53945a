"""What a driver writes to the store: events under the contract's names, and the checkpoints on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy.exc import OperationalError

from cluster.jobs.sink import StoreSink
from cluster.stores.database import Base, Database
from cluster.stores.job_store import JobStore
from cluster.stores.job_tables import NewJob
from cluster.stores.model_registry import ModelRecord, ModelRegistry
from tests.support.events import stream_of
from trainer.errors import UserError
from trainer.events import CheckpointSaved, EngineReplaced, JobEnded, PhaseBegan, RolloutDiscarded, StepDone
from trainer.loop.checkpoint import Checkpoints, LoopState


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "run"
        self.database = Database.of_folder(folder)
        Base.metadata.create_all(self.database.engine)
        self.store = JobStore(self.database)
        self.registry = ModelRegistry(self.database, {})
        new = NewJob("k", "gpt-5", "gpt-5", "file-1", None, None, {"type": "supervised"}, 1, None, None, "sealed", "d")
        self.job_id = self.store.create(new)[0].id
        for status in ("queued", "running"):
            self.store.move(self.job_id, status)  # type: ignore[arg-type]
        self.store.next_attempt(self.job_id, 0, "handle", failures=2)
        self.sink = self.new_sink()

    def new_sink(self, registry: ModelRegistry | None = None) -> StoreSink:
        def name(step: int | None) -> str:
            return "ft:final" if step is None else f"ft:{step}"

        return StoreSink(self.store, registry or self.registry, self.job_id, 1, "gpt-5", self.folder, name)

    def save(self, step: int, reward: float | None) -> None:
        """Save a checkpoint and emit its event."""

        async def nothing(path: Path) -> None: ...

        state = LoopState(step, step, 0, [], 100 * step, reward, "digest")
        path = asyncio.run(Checkpoints(self.folder / "checkpoints").save(state, nothing))
        saved = CheckpointSaved(step=step, path=str(path), num_bytes=1, valid_reward=reward)
        stream_of(self.sink).emit(saved)

    def step(self, step: int, reward: float) -> None:
        metrics = {"step": float(step), "total_steps": 10.0, "train_mean_reward": reward, "time_step_s": 5.0}
        metrics |= {"full_valid_mean_reward": reward, "tool/search/output_tokens_mean": 7.0}
        stream_of(self.sink).emit(StepDone(step=step, total_steps=10, metrics=metrics))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_only_the_best_three_checkpoints_and_the_last_are_models(world: World) -> None:
    for step, reward in enumerate((0.9, 0.1, 0.8, 0.7, 0.2), start=1):
        world.save(step, reward)
        world.step(step, reward)
    world.sink.close()
    kept, _ = world.store.checkpoints(world.job_id)
    assert [(c.step, c.model) for c in kept][::-1] == [(1, "ft:1"), (3, "ft:3"), (4, "ft:4"), (5, "ft:5")]
    assert {c.step: c.metrics["full_valid_mean_reward"] for c in kept}[3] == 0.8
    assert sorted(m.id for m in world.registry.list()) == ["ft:1", "ft:3", "ft:4", "ft:5"]
    with pytest.raises(UserError):
        world.registry.resolve("ft:2")
    assert world.registry.resolve("ft:5").folder.endswith("step-000005")


def test_the_last_checkpoint_becomes_the_tuned_model(world: World) -> None:
    assert world.sink.register_final() is None
    world.save(1, 0.9)
    world.save(2, 0.1)
    world.sink.close()
    assert world.sink.register_final() == "ft:final"
    assert world.registry.resolve("ft:final").folder.endswith("step-000002")


def test_a_step_becomes_a_metrics_event_and_updates_the_job(world: World) -> None:
    world.save(1, 0.5)
    world.step(1, 0.5)
    world.sink.close()
    (metrics,) = [event for event in world.store.events(world.job_id)[0] if event.type == "metrics"]
    assert metrics.data is not None and metrics.data["train_mean_reward"] == 0.5
    assert metrics.data["tools"] == {} and metrics.data["tool/search/output_tokens_mean"] == 7.0
    job = world.store.get(world.job_id)
    assert job.trained_tokens == 100 and job.estimated_finish is not None
    assert job.failures == 0, "drivers lost before a new checkpoint no longer count"


def test_a_checkpoint_whose_driver_was_killed_before_storing_it_is_added_later(world: World) -> None:
    world.save(1, 0.5)
    world.sink.close()
    world.store.drop_checkpoint(world.job_id, 1)  # as if it had been killed before
    again = world.new_sink()
    again.sync_checkpoints({})
    assert [c.step for c in world.store.checkpoints(world.job_id)[0]] == [1]


def test_writes_are_completed_once_an_unavailable_database_is_back(world: World) -> None:
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

    world.sink = world.new_sink(Unreliable(world.database, {}))
    for step, reward in enumerate((0.9, 0.1, 0.8, 0.7), start=1):
        world.save(step, reward)
    world.sink.close()
    assert sorted(model.id for model in world.registry.list()) == ["ft:1", "ft:3", "ft:4"]
    assert sorted(c.model for c in world.store.checkpoints(world.job_id)[0]) == ["ft:1", "ft:3", "ft:4"]


def test_events_contain_no_secrets_of_urls(world: World) -> None:
    stream = stream_of(world.sink)
    stream.emit(EngineReplaced(engine="engine-0", reason="https://me:pw-secret@x.example/y?key=q-secret is slow"))
    stream.emit(PhaseBegan(phase="resources", detail="2 cores requested, 1 free"))
    world.sink.close()
    events, _ = world.store.events(world.job_id)
    assert len(events) == 2 and "secret" not in str(events) and "x.example/y" in str(events)


def test_checkpoints_of_a_supervised_job_without_validation_have_the_loss(world: World) -> None:
    world.save(1, None)
    metrics = {"step": 1.0, "total_steps": 2.0, "loss": 0.7, "time_step_s": 5.0}
    stream_of(world.sink).emit(StepDone(step=1, total_steps=2, metrics=metrics))
    world.sink.close()
    (checkpoint,), _ = world.store.checkpoints(world.job_id)
    assert checkpoint.metrics == {"step": 1.0, "train_loss": 0.7}


def test_events_for_the_run_folder_only_are_not_stored(world: World) -> None:
    stream = stream_of(world.sink)
    stream.emit(
        RolloutDiscarded(trace_id="t", row_id="1", sample=0, purpose="train", reason="tool_failed", cause="HTTP 503")
    )
    stream.emit(PhaseBegan(phase="checkpoint"))
    stream.emit(JobEnded(outcome="failed", error="which the job's state has"))
    world.sink.close()
    assert world.store.events(world.job_id)[0] == []
