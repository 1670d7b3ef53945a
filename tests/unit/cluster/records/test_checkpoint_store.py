"""Checkpoints in a store: whole or not at all, verified, and pruned as in the run folder."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fsspec
import pytest

from agent_rft.cluster.records.checkpoint_store import CheckpointStore, StoreFailed
from agent_rft.errors import UserError
from agent_rft.trainer.loop.checkpoint import Checkpoints, LoopState, latest_checkpoint


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path / 'store'}"
        return
    yield "memory://checkpoints"
    fsspec.filesystem("memory").rm("/checkpoints", recursive=True)


def files_in(url: str) -> list[str]:
    files, root = fsspec.url_to_fs(url)
    return [path.removeprefix(f"{root}/") for path in files.find(root)]


async def save(run: Path, step: int, reward: float | None = None) -> Path:
    """A checkpoint of a run folder, as the loop saves it."""

    async def write(folder: Path) -> None:
        (folder / "state").mkdir()
        (folder / "model.safetensors").write_bytes(os.urandom(100_000))
        (folder / "state" / "rank-0.safetensors").write_bytes(f"state of step {step}".encode())

    (run / "job.resolved.json").write_text(f'{{"step": {step}}}')
    (run / "journal").mkdir(exist_ok=True)
    (run / "journal" / "starts.json").write_text('{"starts": 2}')
    return await Checkpoints(run / "checkpoints").save(LoopState(step, step, 0, [], 0, reward), write)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def new_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


async def test_a_lost_run_folder_comes_back_with_what_resuming_needs(url: str, tmp_path: Path) -> None:
    run, store = new_run(tmp_path / "here" / "run"), CheckpointStore(url)
    for step in (1, 2):
        num_bytes = store.put(run, await save(run, step))
        store.prune(run)
    assert num_bytes == sum(map(len, contents(run / "checkpoints" / "step-000002").values()))

    lost = tmp_path / "there" / "run"
    assert CheckpointStore(url).fetch(lost) == ["step-000001", "step-000002"]
    assert contents(lost / "checkpoints") == contents(run / "checkpoints")
    assert "step-000001/state/rank-0.safetensors" not in contents(lost / "checkpoints")
    assert json.loads((lost / "job.resolved.json").read_text()) == {"step": 2}
    assert json.loads((lost / "journal" / "starts.json").read_text())["starts"] > 1000
    assert not list(lost.rglob("*.tmp"))
    assert CheckpointStore(url).fetch(lost) == []


async def test_a_newer_checkpoint_in_the_run_folder_wins(url: str, tmp_path: Path) -> None:
    run, store = new_run(tmp_path / "run"), CheckpointStore(url)
    store.put(run, await save(run, 3))
    newer = await save(run, 4)
    before = contents(run)
    assert store.fetch(run) == []
    assert contents(run) == before
    store.put(run, newer)
    old = tmp_path / "there" / "run"
    await save(new_run(old), 3)
    assert store.fetch(old) == ["step-000004"]


async def test_the_store_keeps_what_the_run_folder_keeps(url: str, tmp_path: Path) -> None:
    run, store = new_run(tmp_path / "run"), CheckpointStore(url)
    for step, reward in enumerate([0.9, 0.1, 0.8, 0.2, 0.7, 0.3], 1):
        store.put(run, await save(run, step, reward))
        store.prune(run)
    kept = {f"run/owner-000001/{name}" for name in ("step-000001", "step-000003", "step-000005", "step-000006")}
    assert {path.rpartition("/files-")[0] for path in files_in(url) if "/files-" in path} == kept
    assert [path.split("/")[2] for path in files_in(url) if "/state/" in path] == ["step-000006"]
    lost = tmp_path / "there" / "run"
    store.fetch(lost)
    assert contents(lost / "checkpoints") == contents(run / "checkpoints")


async def test_the_newest_one_stays_until_a_newer_one_is_complete(url: str, tmp_path: Path) -> None:
    run, store = new_run(tmp_path / "run"), CheckpointStore(url)
    store.put(run, await save(run, 1))
    for step in range(2, 6):
        await save(run, step, 0.5)
    store.prune(run)
    assert store.list_complete("run") == ["step-000001"]


async def test_one_that_is_written_again_replaces_the_one_of_its_step(url: str, tmp_path: Path) -> None:
    run, store = new_run(tmp_path / "run"), CheckpointStore(url)
    store.put(run, await save(run, 1))
    before = files_in(url)
    store.put(run, again := await save(run, 1, 0.5))
    assert len(files_in(url)) == len(before)
    store.fetch(lost := tmp_path / "there" / "run")
    assert contents(lost / "checkpoints" / "step-000001") == contents(again)


async def test_of_an_upload_that_fails_nothing_is_read(url: str, tmp_path: Path) -> None:
    run, store = new_run(tmp_path / "run"), CheckpointStore(url)
    store.put(run, await save(run, 1))
    second = await save(run, 2)
    stopping = CheckpointStore(url)
    stopping.stop()
    with pytest.raises(StoreFailed, match="stopped"):
        stopping.put(run, second)
    assert store.list_complete("run") == ["step-000001"]
    again = CheckpointStore(url)
    again.put(run, second)
    again.prune(run)
    assert len({path.rpartition("/files-")[2][:16] for path in files_in(url) if "step-000002/files-" in path}) == 1


class Endless(CheckpointStore):
    """Gets to a moment of an upload, says so, and stays there."""

    def __init__(self, url: str, moment: str, reports: Connection) -> None:
        super().__init__(url)
        self._moment = moment
        self._reports = reports

    def _send(self, source: Path, name: str, target: str) -> Any:
        sent = super()._send(source, name, target)
        if (name, self._moment) == ("model.safetensors", "a file"):
            self._stay()
        return sent

    def _write_manifest(self, at: str, manifest: Any) -> None:
        if self._moment == "the manifest":
            self._stay()
        super()._write_manifest(at, manifest)

    def _stay(self) -> None:
        self._reports.send(None)
        threading.Event().wait()


def _put_endlessly(url: str, moment: str, run: Path, checkpoint: Path, reports: Connection) -> None:
    Endless(url, moment, reports).put(run, checkpoint)


@pytest.mark.parametrize("moment", ["a file", "the manifest"])
async def test_of_an_upload_that_is_killed_nothing_is_read_and_nothing_stays(tmp_path: Path, moment: str) -> None:
    url, run = f"file://{tmp_path / 'store'}", new_run(tmp_path / "run")
    store = CheckpointStore(url)
    store.put(run, await save(run, 1))
    second = await save(run, 2)
    context = multiprocessing.get_context("forkserver")
    reports, sender = context.Pipe(duplex=False)
    process = context.Process(target=_put_endlessly, args=(url, moment, run, second, sender))
    process.start()
    sender.close()
    reports.recv()
    process.kill()
    process.join()
    uploads = tmp_path / "store" / "run"
    assert list((uploads / "owner-000002" / "step-000002").rglob("model.safetensors"))
    assert CheckpointStore(url).fetch(tmp_path / "there" / "run") == ["step-000001"]
    again = CheckpointStore(url)
    again.put(run, second)
    again.prune(run)
    assert len(list(uploads.glob("*/step-000002/files-*"))) == 1
    assert not (uploads / "owner-000002").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda path: path.write_bytes(os.urandom(100_000)),
            "model.safetensors in the checkpoint store does not match",
        ),
        (lambda path: path.write_bytes(b"short"), "model.safetensors in the checkpoint store has 5 bytes instead of"),
        (lambda path: path.unlink(), "model.safetensors in the checkpoint store is missing"),
    ],
)
async def test_a_damaged_file_is_named_and_the_checkpoint_before_is_not_used(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    store, run = CheckpointStore(f"file://{tmp_path / 'store'}"), new_run(tmp_path / "run")
    for step in (1, 2):
        store.put(run, await save(run, step))
    [model] = (tmp_path / "store" / "run" / "owner-000001" / "step-000002").rglob("model.safetensors")
    damage(model)
    lost = tmp_path / "there" / "run"
    with pytest.raises(UserError, match=f"{message}.*restore this file, or start a new run"):
        store.fetch(lost)
    assert latest_checkpoint(lost / "checkpoints") is None
    assert not (lost / "job.resolved.json").exists()


@pytest.mark.parametrize("name", ["../../../x", "/etc/x", "a/../../x", "", ".", "a\\..\\x"])
async def test_no_file_is_written_outside_of_the_run_folder(tmp_path: Path, name: str) -> None:
    store, run = CheckpointStore(f"file://{tmp_path / 'store'}"), new_run(tmp_path / "run")
    store.put(run, await save(run, 1))
    manifest = tmp_path / "store" / "run" / "owner-000001" / "step-000001" / "manifest.json"
    for kind in ("files", "records"):
        changed = json.loads(text := manifest.read_text())
        changed[kind][0]["name"] = name
        manifest.write_text(json.dumps(changed))
        with pytest.raises(UserError, match=r"manifest\.json in the checkpoint store is damaged"):
            store.fetch(tmp_path / "there" / "run")
        manifest.write_text(text)


async def test_a_damaged_checkpoint_is_replaced_by_that_of_the_run_folder(tmp_path: Path) -> None:
    store, run = CheckpointStore(f"file://{tmp_path / 'store'}"), new_run(tmp_path / "run")
    store.put(run, checkpoint := await save(run, 1))
    (tmp_path / "store" / "run" / "owner-000001" / "step-000001" / "manifest.json").write_text("{")
    store.put(run, checkpoint)
    assert store.fetch(tmp_path / "there" / "run") == ["step-000001"]


async def test_a_manifest_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    store, run = CheckpointStore(f"file://{tmp_path / 'store'}"), new_run(tmp_path / "run")
    store.put(run, await save(run, 1))
    manifest = tmp_path / "store" / "run" / "owner-000001" / "step-000001" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 2}))
    with pytest.raises(UserError, match="newer version"):
        store.fetch(tmp_path / "there" / "run")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("gs://bucket/x", "gcsfs"),
        ("nowhere://bucket", "Protocol not known.* such as s3://"),
        ("/mnt/checkpoints", "must be a URL"),
        ("s3://key:secret@bucket/x", "credentials in the environment"),
    ],
)
def test_a_location_that_cannot_be_used_is_refused_with_the_fix(url: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^checkpoint_store: .*{message}") as refused:
        CheckpointStore(url)
    assert "secret" not in str(refused.value)
