"""What a lost driver costs: updates are replayed, finished groups are kept, nothing is trained twice."""

from __future__ import annotations

import asyncio
import errno
import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_rft.errors import TrainingHalted, UserError
from agent_rft.events import CheckpointSaved, DiskFreed, DiskFull, UpdatesReplayed
from agent_rft.spec.job import CheckpointInterval
from agent_rft.trainer.loop.checkpoint import LoopState
from agent_rft.trainer.loop.group_buffer import Batch
from agent_rft.trainer.loop.journal import Journal
from agent_rft.types import Group, GroupRequest, StepReport, TrainSegment
from tests.support.builders import group, group_request, rollout, untrained
from tests.support.fakes import FakeLearner
from tests.support.fakes_http import until
from tests.support.loops import (
    EACH_STEP,
    NEVER,
    Killed,
    Numbered,
    counting,
    killed_in,
    made,
    some_without_signal,
    undisturbed,
)


@pytest.mark.parametrize("seed", range(6))
async def test_a_run_that_is_lost_at_any_moment_trains_the_same_batches(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    expected = await undisturbed(tmp_path / "calm")
    interval = draw.choice([NEVER, EACH_STEP, CheckpointInterval(minutes=None, steps=3)])
    finished: set[int] = set()
    for life in range(8):
        run = made(tmp_path / "lost", seed + life, interval=interval)
        asyncio.get_running_loop().set_default_executor(threads := ThreadPoolExecutor())
        if life:
            await run.loop.resume()
        running = asyncio.create_task(run.loop.run())
        for _ in range(draw.randrange(2000) if life < 7 else 0):
            await asyncio.sleep(0)
        if life < 7:
            running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        threads.shutdown()  # a killed process has none either
        assert not finished & {request.index for _, request in run.train_requests}, "finished groups were sampled again"
        assert all(request.attempt <= life for _, request in run.train_requests)
        finished |= {int(path.name[6:14]) for path in (tmp_path / "lost" / "journal").glob("group-*.zst")}
    assert run.learner.weights == expected


async def test_a_stop_offers_the_checkpoint_of_its_step_without_writing_it_again(tmp_path: Path) -> None:
    """It is the only one with the learner's state: while it is replaced, a kill would lose the run."""
    run = made(tmp_path, interval=EACH_STEP)
    run.learner._report = lambda step: (run.loop.stop() if step == 3 else None) or StepReport({}, applied=True)
    await run.loop.run()
    assert [folder.name for folder in run.learner.saved] == ["step-000001.tmp", "step-000002.tmp", "step-000003.tmp"]
    assert [(saved.step, saved.is_servable) for saved in run.sink.of(CheckpointSaved)][-2:] == [(3, False), (3, True)]
    assert [(state.step, state.is_servable) for _, state in run.checkpoints.list_all()] == [(3, True)]


async def test_a_run_that_resumed_from_a_checkpoint_of_the_interval_offers_its_last_one(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        await made(tmp_path, learner=FakeLearner(killed_in(3)), interval=EACH_STEP).loop.run()
    again = made(tmp_path, interval=NEVER)
    again.learner._report = lambda step: again.loop.stop() or StepReport({}, applied=True)
    await again.loop.resume()
    state = await again.loop.run()
    latest = again.checkpoints.latest()
    assert latest is not None and (latest[1].step, latest[1].is_servable) == (state.step, True)


async def test_a_full_disk_pauses_the_job_which_then_goes_on(tmp_path: Path) -> None:
    class Filling(Journal):
        full_for = 3

        async def add_batch(self, batch: Batch) -> None:
            if batch.to_train[0].request.index > 4 and self.full_for:
                self.full_for -= 1
                raise OSError(errno.ENOSPC, "No space left on device")
            await super().add_batch(batch)

    sleeps: list[float] = []
    run = made(tmp_path / "full", journal=Filling(tmp_path / "full" / "journal"), sleep=counting(sleeps))
    await run.loop.run()
    assert [type(e) for e in run.sink.events if isinstance(e, DiskFull | DiskFreed)] == [
        DiskFull,
        DiskFreed,
    ]
    assert sleeps == [10.0] * 3
    assert run.learner.weights == await undisturbed(tmp_path / "calm")


async def test_a_disk_that_fails_otherwise_ends_the_job(tmp_path: Path) -> None:
    class ReadOnly(Journal):
        async def add_batch(self, batch: Batch) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

    run = made(tmp_path, journal=ReadOnly(tmp_path / "journal"), sleep=counting([]))
    with pytest.raises(OSError, match="Read-only"):
        await run.loop.run()
    assert not run.sink.of(DiskFull)


async def test_a_checkpoint_of_the_interval_is_replaced_by_the_next_and_no_model(tmp_path: Path) -> None:
    run = made(tmp_path, interval=CheckpointInterval(minutes=None, steps=3))
    await run.loop.run()
    assert [(saved.step, saved.is_servable) for saved in run.sink.of(CheckpointSaved)] == [
        (3, False),
        (4, True),
        (7, False),
        (8, True),
        (9, True),
    ]
    assert [state.step for _, state in run.checkpoints.list_all()] == [4, 8, 9]
    whole = [(path / "state").exists() for path, _ in run.checkpoints.list_all()]
    assert whole == [False, False, True]
    assert all((path / "model.safetensors").exists() for path, _ in run.checkpoints.list_all())


async def test_a_checkpoint_is_due_by_minutes_of_the_clock(tmp_path: Path) -> None:
    now = [0.0]

    class Learner(FakeLearner):
        async def step(self, sequences: Sequence[TrainSegment], version: int) -> StepReport:
            # While one is being written, none is due.
            await until(lambda: len(run.sink.of(CheckpointSaved)) >= len(self.batches) // 4)
            now[0] += 240.0
            return await super().step(sequences, version)

    run = made(tmp_path, learner=Learner(), clock=lambda: now[0], eval_interval=9)
    await run.loop.run()
    assert [saved.step for saved in run.sink.of(CheckpointSaved)] == [4, 8, 9]


async def test_rows_of_a_starved_batch_are_done(tmp_path: Path) -> None:
    first = made(tmp_path, rollouts=Numbered(lambda r: [1.0] * 4 if r.index < 4 else [0.0, 1.0, 0.0, 1.0]), steps=1)
    await first.loop.run()
    second = made(tmp_path, steps=2)
    await second.loop.resume()
    await second.loop.run()
    seen = [request for run in (first, second) for _, request in run.train_requests]
    rows = [(request.epoch, request.task.row_id) for request in sorted(seen, key=lambda request: request.index)]
    assert len(set(rows)) == len(rows)


async def test_a_batch_that_ended_the_job_is_not_learned_from_when_it_resumes(tmp_path: Path) -> None:
    gaps = {3: {"logprob_gap": 0.9, "logprob_gap_tokens": 200.0}}
    run = made(tmp_path, learner=FakeLearner(lambda step: StepReport(gaps.get(step, {}), applied=True)))
    with pytest.raises(TrainingHalted, match="different log-probabilities"):
        await run.loop.run()
    dropped = run.learner.weights[2]
    again = made(tmp_path)
    await again.loop.resume()
    [replayed] = again.sink.of(UpdatesReplayed)
    assert (replayed.num_updates, replayed.num_groups) == (2, 0), "later groups are of the same engines"
    await again.loop.run()
    sampled = {request.index for _, request in again.train_requests}
    assert {tokens[0] for tokens in dropped[1]} <= sampled


@pytest.mark.parametrize("halts", ["in its update", "in its check"])
async def test_a_batch_that_ends_the_job_in_a_replay_ends_it_once(tmp_path: Path, halts: str) -> None:
    with pytest.raises(Killed):
        await made(tmp_path, learner=FakeLearner(killed_in(3))).loop.run()

    def report(step: int) -> StepReport:
        if halts == "in its update" and step == 3:
            raise TrainingHalted("3 updates in a row had a gradient that is not finite")
        return StepReport({"logprob_gap": 0.9 if step == 3 else 0.0, "logprob_gap_tokens": 200.0}, applied=True)

    halted = made(tmp_path, learner=FakeLearner(report))
    with pytest.raises(TrainingHalted):
        await halted.loop.resume(reported_steps={1, 2})
        await halted.loop.run()
    again = made(tmp_path)
    await again.loop.resume(reported_steps={1, 2})
    assert [replayed.num_updates for replayed in again.sink.of(UpdatesReplayed)] == [2]
    assert (await again.loop.run()).step == 9


async def test_engines_that_cannot_validate_end_the_job_but_keep_its_batch(tmp_path: Path) -> None:
    class Broken(Numbered):
        async def sample(self, request: GroupRequest) -> Group:
            if request.purpose == "validation" and self.version == 4:
                raise TrainingHalted("engine-0 could not be started")
            return await super().sample(request)

    run = made(tmp_path, rollouts=Broken(some_without_signal), validate=True)
    with pytest.raises(TrainingHalted, match="engine-0"):
        await run.loop.run()
    again = made(tmp_path, validate=True)
    await again.loop.resume()
    assert [replayed.num_updates for replayed in again.sink.of(UpdatesReplayed)] == [4]


async def test_a_step_is_reported_once_and_its_validation_is_not_repeated(tmp_path: Path) -> None:
    run = made(tmp_path, validate=True, eval_interval=2)
    emit = run.sink.emit

    def until_step_4(event: Any) -> None:
        if type(event).__name__ == "StepDone" and event.step == 4:
            raise Killed
        emit(event)

    run.sink.emit = until_step_4  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await run.loop.run()
    again = made(tmp_path, validate=True, eval_interval=2)
    await again.loop.resume(reported_steps={1, 2, 3})
    await again.loop.run()
    assert [metrics["step"] for metrics in again.sink.steps] == [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert "full_valid_rollouts" in again.sink.steps[0]
    validated = [version for version, request in again.rollouts.requests if request.purpose == "validation"]
    assert set(validated) == {6, 8, 9}


async def test_steps_whose_reports_were_lost_are_reported_by_the_replay(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        await made(tmp_path, learner=FakeLearner(killed_in(4)), interval=NEVER).loop.run()
    again = made(tmp_path)
    await again.loop.resume(reported_steps={1})
    await again.loop.run()
    assert [metrics["step"] for metrics in again.sink.steps] == list(range(2, 10))


async def test_a_validation_whose_checkpoint_was_not_written_is_not_repeated(tmp_path: Path) -> None:
    class Unwritten(FakeLearner):
        async def write_snapshot(self, folder: Path) -> None:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        await made(tmp_path, learner=Unwritten(), validate=True, steps=4).loop.run()
    again = made(tmp_path, validate=True, steps=4)
    await again.loop.resume(reported_steps={1, 2, 3})
    while not again.sink.of(CheckpointSaved):
        await asyncio.to_thread(lambda: None)
    await again.loop.run()
    assert [metrics["step"] for metrics in again.sink.steps] == [4.0]
    assert "full_valid_rollouts" in again.sink.steps[0]
    assert not again.rollouts.requests


async def test_records_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    await Journal(tmp_path / "journal").add_batch(Batch([group(group_request(0, 4), [0.0, 1.0])]))
    [record] = (tmp_path / "journal").glob("batch-*.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"format": 99}))
    with pytest.raises(UserError, match="newer version"):
        await made(tmp_path).loop.resume()


async def test_records_that_do_not_follow_the_checkpoint_are_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    groups = [group(group_request(index, 4), [0.0, 1.0]) for index in (4, 5)]
    for one in groups:
        await journal.add_group(one)
    await journal.add_batch(Batch(groups))
    assert [record.to_train for record in journal.read_batches(4)] == [(4, 5)]
    assert journal.read_batches(2) == []
    assert list(journal.read_finished_groups(0)) == []


async def test_a_group_comes_back_from_its_record_bit_by_bit(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    random_ = np.random.default_rng(1)
    one = group(group_request(3, 4), [0.1 + 0.2, None, 1 / 3], wall_s=0.1)
    rollouts = [
        rollout(one.request, r.sample, logprobs=random_.normal(size=5).astype(np.float32), reward=1e-17)
        for r in one.rollouts
    ]
    rollouts[0] = replace(untrained(rollouts[0]), segments=(*rollouts[0].segments, *rollouts[1].segments))
    one = replace(one, rollouts=tuple(rollouts))
    await journal.add_group(one)
    back = journal.read_group(3)
    assert back.wall_s == 0.1 and back.discarded == one.discarded
    for was, now in zip(one.rollouts, back.rollouts, strict=True):
        assert (was.reward, was.grade, was.trace_id) == (now.reward, now.grade, now.trace_id)
        for before, after in zip(was.segments, now.segments, strict=True):
            for name in ("token_ids", "loss_mask", "logprobs", "versions"):
                assert getattr(before, name).tobytes() == getattr(after, name).tobytes()
                assert getattr(before, name).dtype == getattr(after, name).dtype


def test_the_state_keeps_rows_of_the_newest_epoch_only() -> None:
    state = LoopState(0, 0, 0, ["a"], 0, None).with_rows([(0, "b"), (1, "c")], 2)
    assert (state.epoch, state.rows_done, state.next_group) == (1, ["c"], 2)
