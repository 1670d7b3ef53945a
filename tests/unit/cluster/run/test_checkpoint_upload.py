"""Checkpoints are copied while training goes on, and a run whose folder was lost resumes from them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from agent_rft.cluster.records.checkpoint_store import CheckpointStore, StoreFailed
from agent_rft.cluster.run.checkpoint_upload import (
    FETCH_PAUSES_S,
    PAUSES_S,
    CheckpointUploader,
    open_store,
    restore_checkpoints,
)
from agent_rft.errors import RftError
from agent_rft.events import CheckpointStoreClaimed, CheckpointStoreFailed, CheckpointUploaded
from agent_rft.rows.ownership import HEARTBEAT, FolderLost, claim_folder
from agent_rft.spec.job import CheckpointInterval
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.trainer.loop.checkpoint import Checkpoints, LoopState
from tests.support.events import Recording, stream_of
from tests.support.fakes import FakeSink
from tests.support.loops import Made

RUN = {"steps": 6, "n_epochs": 4, "eval_interval": 6, "validate": False}
EACH_STEP = CheckpointInterval(minutes=None, steps=1)
URL = "memory://copies"


@pytest.fixture(autouse=True)
def emptied() -> Iterator[None]:
    yield
    memory = fsspec.filesystem("memory")
    if memory.exists("/copies"):
        memory.rm("/copies", recursive=True)


class Flaky(CheckpointStore):
    """Fails `failures` times, then works; says when an upload begins, and may be held up."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__(URL)
        self.failures = failures
        self.began = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def put(self, run_folder: Path, checkpoint: Path) -> int:
        self.began.set()
        assert self.may_go_on.wait(60)
        self._fail()
        return super().put(run_folder, checkpoint)

    def fetch(self, run_folder: Path) -> list[str]:
        self._fail()
        return super().fetch(run_folder)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreFailed("cannot reach https://key:hidden@s3.test/bucket?token=hidden", public_message="it failed")


class Sleeps(list[float]):
    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


async def save(checkpoints: Checkpoints, step: int) -> Path:
    async def write(folder: Path) -> None:
        (folder / "state").mkdir()
        (folder / "state" / "rank-0").write_text(str(step))

    return await checkpoints.save(LoopState(step, step, 0, [], 0, None, is_servable=False), write)


def test_no_store_is_opened_unless_the_operator_names_one() -> None:
    assert open_store(OperatorConfig()) is None
    assert isinstance(open_store(OperatorConfig(checkpoint_store=URL)), CheckpointStore)


async def test_a_run_whose_folder_was_lost_goes_on_from_the_store(tmp_path: Path) -> None:
    calm = Made(tmp_path / "calm", **RUN)
    await calm.loop.run()

    here, there, sink = tmp_path / "here" / "run", tmp_path / "there" / "run", FakeSink()
    copies = CheckpointUploader(CheckpointStore(URL), here, sink.emit)
    first = Made(here, interval=EACH_STEP, copies=copies, **RUN | {"steps": 3})
    await first.loop.run()
    await copies.finish()
    assert sink.of(CheckpointUploaded)[-1].step == 3

    told: list[str] = []
    restore_checkpoints(there, CheckpointStore(URL), told.append)
    assert told == ["run resumes from step-000003 in the checkpoint store"]
    second = Made(there, **RUN)
    await second.loop.resume()
    await second.loop.run()
    assert second.learner.weights == calm.learner.weights
    attempts = {request.attempt for _, request in second.train_requests}
    assert min(attempts) > max(request.attempt for _, request in first.train_requests)


async def test_the_one_that_is_being_copied_stays_and_only_the_newest_follows(tmp_path: Path) -> None:
    store, sink, run = Flaky(), FakeSink(), tmp_path / "run"
    store.may_go_on.clear()
    copies = CheckpointUploader(store, run, sink.emit)
    checkpoints = Checkpoints(run / "checkpoints", copies)
    await save(checkpoints, 1)
    await asyncio.to_thread(store.began.wait, 60)
    for step in (2, 3, 4):
        await save(checkpoints, step)
    assert [path.name for path, _ in checkpoints.list_all()] == ["step-000001", "step-000004"]
    store.may_go_on.set()
    await copies.finish()
    assert [event.step for event in sink.of(CheckpointUploaded)] == [1, 4]
    assert not sink.of(CheckpointStoreFailed)
    assert [path.name for path, _ in checkpoints.list_all()] == ["step-000004"] == store.list_complete("run")


async def test_what_a_killed_process_did_not_copy_is_copied_when_the_run_goes_on(tmp_path: Path) -> None:
    store, sink, run = CheckpointStore(URL), FakeSink(), tmp_path / "run"
    await save(Checkpoints(run / "checkpoints"), 1)
    for _ in range(2):  # the second time it is there
        copies = CheckpointUploader(store, run, sink.emit)
        Checkpoints(run / "checkpoints", copies)
        await copies.finish()
        assert store.list_complete("run") == ["step-000001"]
    assert len(sink.of(CheckpointUploaded)) == 1


async def test_a_store_that_fails_is_tried_again_then_with_the_next_checkpoint(tmp_path: Path) -> None:
    store, sink, run, sleeps = Flaky(len(PAUSES_S) + 1), FakeSink(), tmp_path / "run", Sleeps()
    copies = CheckpointUploader(store, run, sink.emit, sleeps)
    checkpoints = Checkpoints(run / "checkpoints", copies)
    await save(checkpoints, 1)
    await copies.finish()
    assert tuple(sleeps) == PAUSES_S
    assert [event.retry_in_s for event in sink.of(CheckpointStoreFailed)] == [*PAUSES_S, None]
    assert store.list_complete("run") == []
    await save(checkpoints, 2)
    await copies.finish()
    assert store.list_complete("run") == ["step-000002"]


async def test_no_credentials_are_in_events_and_clients_see_no_cause(tmp_path: Path) -> None:
    recording = Recording()
    copies = CheckpointUploader(Flaky(1), tmp_path / "run", stream_of(recording).emit, Sleeps())
    await save(Checkpoints(tmp_path / "run" / "checkpoints", copies), 1)
    await copies.finish()
    [failed] = [event for event in recording.events if isinstance(event.event, CheckpointStoreFailed)]
    assert "cannot reach https://" in failed.message
    assert "hidden" not in json.dumps(failed.to_line()) + failed.message
    assert {"cause"} == CheckpointStoreFailed.PRIVATE


class TakenAfterUpload(CheckpointStore):
    """A store that another process claims before this one removes checkpoints."""

    def prune(self, run_folder: Path) -> None:
        CheckpointStore(URL).claim(run_folder)
        super().prune(run_folder)


async def test_a_store_that_is_claimed_between_upload_and_removal_is_no_failing_store(tmp_path: Path) -> None:
    sink, run = FakeSink(), tmp_path / "run"
    copies = CheckpointUploader(TakenAfterUpload(URL), run, sink.emit)
    for step in (1, 2):
        await save(Checkpoints(run / "checkpoints", copies), step)
        await copies.finish()
    assert sink.of(CheckpointStoreClaimed) == [CheckpointStoreClaimed(step=1)]
    assert not sink.of(CheckpointStoreFailed)


async def test_process_whose_store_was_claimed_by_another_one_uploads_no_more_and_goes_on(tmp_path: Path) -> None:
    sink, run, store = FakeSink(), tmp_path / "run", CheckpointStore(URL)
    copies = CheckpointUploader(store, run, sink.emit)
    checkpoints = Checkpoints(run / "checkpoints", copies)
    await save(checkpoints, 1)
    await copies.finish()
    CheckpointStore(URL).claim(run)
    for step in (2, 3, 4):
        await save(checkpoints, step)
        await copies.finish()
    assert sink.of(CheckpointStoreClaimed) == [CheckpointStoreClaimed(step=2)]
    assert not sink.of(CheckpointStoreFailed)
    assert [path.name for path, _ in checkpoints.list_all()] == ["step-000004"], (
        "those that are not uploaded are removed"
    )
    assert store.list_complete("run") == ["step-000001"]


def test_process_that_will_train_claims_the_store_if_it_still_owns_the_folder(tmp_path: Path) -> None:
    files, root = fsspec.url_to_fs(URL)
    with claim_folder(tmp_path / "run") as owner:
        restore_checkpoints(tmp_path / "run", CheckpointStore(URL), print)
        assert not files.exists(root)
        restore_checkpoints(tmp_path / "run", CheckpointStore(URL), print, owner=owner)
        assert files.exists(f"{root}/run/owner-000001.json")
        (owner.folder / HEARTBEAT).unlink()
        with pytest.raises(FolderLost):
            restore_checkpoints(tmp_path / "run", CheckpointStore(URL), print, owner=owner)
    assert not files.exists(f"{root}/run/owner-000002.json")


async def test_what_takes_too_long_at_the_end_is_given_up(tmp_path: Path) -> None:
    store, sink, run = Flaky(), FakeSink(), tmp_path / "run"
    store.may_go_on.clear()
    copies = CheckpointUploader(store, run, sink.emit, patience_s=0.0)
    await save(Checkpoints(run / "checkpoints", copies), 1)
    await asyncio.to_thread(store.began.wait, 60)
    await copies.finish()
    store.may_go_on.set()
    assert [event.retry_in_s for event in sink.of(CheckpointStoreFailed)] == [None]


def test_a_lost_run_does_not_begin_anew_while_the_store_fails(tmp_path: Path) -> None:
    sleeps: list[float] = []
    with pytest.raises(RftError, match=r"cannot reach https://\*+@s3.test.*checkpoint_store: null") as failed:
        restore_checkpoints(tmp_path / "run", Flaky(99), print, sleeps.append)
    assert tuple(sleeps) == FETCH_PAUSES_S
    assert "hidden" not in f"{failed.value} {failed.value.public_message}"
    restore_checkpoints(tmp_path / "run", Flaky(len(FETCH_PAUSES_S)), print, sleeps.append)


async def test_a_run_with_a_checkpoint_goes_on_while_the_store_fails(tmp_path: Path) -> None:
    await save(Checkpoints(tmp_path / "run" / "checkpoints"), 1)
    told: list[str] = []
    restore_checkpoints(tmp_path / "run", Flaky(99), told.append)
    assert "resumes from the checkpoint in its folder" in told[0]
    assert "hidden" not in told[0]
