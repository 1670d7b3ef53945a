"""Two processes that upload checkpoints of the same run: the later one writes them, whatever the earlier one does."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from agent_rft.cluster.records.checkpoint_claims import CheckpointsTaken
from agent_rft.cluster.records.checkpoint_store import CheckpointStore, StoreFailed
from agent_rft.errors import UserError
from tests.unit.cluster.records.test_checkpoint_store import contents, files_in, new_run, save


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path / 'store'}"
        return
    yield "memory://claims"
    fsspec.filesystem("memory").rm("/claims", recursive=True)


class DelayedListing(MemoryFileSystem):
    """An object store that does not list a claim until this process has asked for it by name."""

    protocol = ("delayed",)
    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._seen: set[str] = set()

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        found = super().ls(path, detail=False, **options)
        hidden = {name for name in found if name.endswith(".json") and "/owner-" in name} - self._seen
        shown = [name for name in found if name not in hidden]
        return [self.info(name) for name in shown] if detail else shown

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self._seen.add(self._strip_protocol(path))
        return super().open(path, mode, **options)


class Overwriting(MemoryFileSystem):
    """A store without conditional writes."""

    protocol = ("overwriting",)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return super().open(path, mode.replace("x", "w"), **options)


class ReadWriteOnly(LocalFileSystem):
    """A store whose library does not support conditional writes."""

    protocol = ("readwrite",)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if "x" in mode:
            raise NotImplementedError("File mode not supported")
        return super().open(path, mode, **options)


class Meanwhile(LocalFileSystem):
    """A slow store: once, before a claim is created, another process does `acts`."""

    protocol = ("meanwhile",)
    acts: ClassVar[list[Callable[[], object]]] = []

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        while "x" in mode and self.acts:
            self.acts.pop()()
        return super().open(path, mode, **options)


class Suspended(CheckpointStore):
    """A process that stops before the call named `moment` until `wake` is set."""

    def __init__(self, url: str, moment: str) -> None:
        super().__init__(url)
        self._moment = moment
        self.reached = threading.Event()
        self.wake = threading.Event()

    def _send(self, *arguments: Any) -> Any:
        return self._pause("_send", super()._send, *arguments)

    def _write_manifest(self, *arguments: Any) -> None:
        self._pause("_write_manifest", super()._write_manifest, *arguments)

    def _remove_checkpoint(self, *arguments: Any) -> None:
        self._pause("_remove_checkpoint", super()._remove_checkpoint, *arguments)

    def _pause(self, moment: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if moment == self._moment:
            self.reached.set()
            assert self.wake.wait(60)
        return call(*arguments)


def complete_files(url: str) -> dict[str, bytes]:
    """The content of all files of the last owner, by path."""
    files, root = fsspec.url_to_fs(url)
    newest = max(path.split("/")[1] for path in files_in(url) if path.endswith("/manifest.json"))
    return {path: files.cat_file(f"{root}/{path}") for path in files_in(url) if path.split("/")[1] == newest}


@pytest.mark.parametrize("moment", ["_send", "_write_manifest"])
async def test_upload_that_ends_after_another_process_took_over_is_not_read(
    url: str, tmp_path: Path, moment: str
) -> None:
    """Both upload step 2. The folder of the first process is another one, as on a machine that was cut off."""
    here, there = new_run(tmp_path / "here" / "run"), tmp_path / "there" / "run"
    first = Suspended(url, "")
    first.put(here, await save(here, 1))
    first._moment = moment
    with ThreadPoolExecutor(1) as thread:
        putting = thread.submit(first.put, here, await save(here, 2))
        assert first.reached.wait(60)
        second = CheckpointStore(url)
        second.claim(there)
        assert second.fetch(there) == ["step-000001"]
        second.put(there, await save(there, 2))
        second.prune(there)
        before = complete_files(url)
        first.wake.set()
        with suppress(StoreFailed):  # the folder of its upload may be gone
            putting.result()
    assert complete_files(url) == before
    lost = tmp_path / "later" / "run"
    assert CheckpointStore(url).fetch(lost) == ["step-000001", "step-000002"]
    assert contents(lost / "checkpoints") == contents(there / "checkpoints")
    with pytest.raises(CheckpointsTaken, match="another process has claimed the checkpoints of run"):
        first.put(here, await save(here, 3))
    with pytest.raises(CheckpointsTaken):
        first.prune(here)
    second.prune(there)
    assert {path.split("/")[2] for path in files_in(url) if "owner-000001/" in path} == {"step-000001"}


async def test_removal_that_goes_on_after_another_process_took_over_removes_none_of_its_checkpoints(
    url: str, tmp_path: Path
) -> None:
    here, there = new_run(tmp_path / "here" / "run"), tmp_path / "there" / "run"
    first = Suspended(url, "_remove_checkpoint")
    for step in (1, 2, 3):
        first.put(here, await save(here, step, 1.0))
    for step in (1, 2):
        shutil.rmtree(here / "checkpoints" / f"step-{step:06d}")
    with ThreadPoolExecutor(1) as thread:
        pruning = thread.submit(first.prune, here)
        assert first.reached.wait(60)
        second = CheckpointStore(url)
        second.claim(there)
        second.fetch(there)
        second.put(there, await save(there, 4, 1.0))
        before = files_in(url)
        first.wake.set()
        with pytest.raises(CheckpointsTaken):
            pruning.result()
    assert files_in(url) == before


async def test_what_an_earlier_owner_does_while_a_claim_is_created_is_adopted(tmp_path: Path) -> None:
    """It copies step 2 and removes step 1 after its successor has listed step 1."""
    fsspec.register_implementation("meanwhile", Meanwhile, clobber=True)
    here, there = new_run(tmp_path / "here" / "run"), tmp_path / "there" / "run"
    first = CheckpointStore(f"file://{tmp_path / 'store'}")
    second = CheckpointStore(f"meanwhile://{tmp_path / 'store'}")
    first.put(here, await save(here, 1, 0.5))
    copied = await save(here, 2, 1.0)

    def copy_and_remove() -> None:
        first.put(here, copied)
        shutil.rmtree(here / "checkpoints" / "step-000001")
        shutil.rmtree(tmp_path / "store" / "run" / "owner-000001" / "step-000001")

    Meanwhile.acts.append(copy_and_remove)
    second.claim(there)
    assert Meanwhile.acts == []
    assert second.fetch(there) == ["step-000002"]
    claims = sorted(path.name for path in (tmp_path / "store" / "run").glob("*.json"))
    assert claims == ["owner-000001.json", "owner-000002.json"]


async def test_process_that_resumes_adopts_the_checkpoints_and_removes_them_later(url: str, tmp_path: Path) -> None:
    run, first = new_run(tmp_path / "run"), CheckpointStore(url)
    first.put(run, await save(run, 1, 0.5))
    second = CheckpointStore(url)
    second.claim(run)
    assert second.put(run, run / "checkpoints" / "step-000001") == 0, "it is there already"
    for step in (2, 3, 4, 5):
        second.put(run, await save(run, step, 0.5 + step))
        second.prune(run)
    assert second.list_complete("run") == [f"step-00000{step}" for step in (3, 4, 5)]
    assert not any("owner-000001" in path for path in files_in(url))


async def test_checkpoints_of_versions_without_claims_are_adopted(tmp_path: Path) -> None:
    store, run = CheckpointStore(f"file://{tmp_path / 'store'}"), new_run(tmp_path / "run")
    store.put(run, await save(run, 1))
    folder = tmp_path / "store" / "run"
    (folder / "owner-000001" / "step-000001").rename(folder / "step-000001")
    (folder / "owner-000001.json").unlink()
    (folder / "owner-000001").rmdir()

    again = CheckpointStore(f"file://{tmp_path / 'store'}")
    assert again.fetch(tmp_path / "unclaimed" / "run") == ["step-000001"]
    again.claim(there := tmp_path / "there" / "run")
    assert again.fetch(there) == ["step-000001"]
    for step in (2, 3, 4, 5):
        again.put(there, await save(there, step, 1.0 + step))
        again.prune(there)
    assert sorted(path.name for path in folder.iterdir()) == ["owner-000001", "owner-000001.json"]


async def test_claim_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    url, run = f"file://{tmp_path / 'store'}", new_run(tmp_path / "run")
    store = CheckpointStore(url)
    store.put(run, await save(run, 1))
    (tmp_path / "store" / "run" / "owner-000002.json").write_text('{"format": 1, "adop')
    assert CheckpointStore(url).list_complete("run") == ["step-000001"]
    with pytest.raises(CheckpointsTaken):
        store.put(run, await save(run, 2))
    again = CheckpointStore(url)
    again.claim(run)
    assert again.list_complete("run") == ["step-000001"]
    assert (tmp_path / "store" / "run" / "owner-000003.json").exists()


async def test_claim_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    url, run = f"file://{tmp_path / 'store'}", new_run(tmp_path / "run")
    CheckpointStore(url).claim(run)
    claim = tmp_path / "store" / "run" / "owner-000001.json"
    claim.write_text(json.dumps(json.loads(claim.read_text()) | {"format": 2}))
    with pytest.raises(UserError, match=r"run/owner-000001\.json was written by a newer version"):
        CheckpointStore(url).fetch(run)


def test_claim_that_is_not_listed_yet_is_not_made_twice(tmp_path: Path) -> None:
    fsspec.register_implementation("delayed", DelayedListing, clobber=True)
    url = f"delayed:/{tmp_path}"
    for _ in range(2):
        CheckpointStore(url).claim(tmp_path / "run")
    files = MemoryFileSystem().find(fsspec.url_to_fs(url)[1])
    assert [path.rpartition("/")[2] for path in files] == ["owner-000001.json", "owner-000002.json"]


def test_processes_that_claim_at_the_same_moment_get_different_numbers(tmp_path: Path) -> None:
    stores = [CheckpointStore(f"file://{tmp_path / 'store'}") for _ in range(8)]
    start = threading.Barrier(len(stores))

    def claim(store: CheckpointStore) -> None:
        start.wait(60)
        store.claim(tmp_path / "run")

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(claim, stores))
    claims = sorted(path.name for path in (tmp_path / "store" / "run").iterdir())
    assert claims == [f"owner-00000{number}.json" for number in range(1, 9)]


@pytest.mark.parametrize("kind", [Overwriting, ReadWriteOnly])
def test_store_without_conditional_writes_is_refused(tmp_path: Path, kind: Any) -> None:
    [protocol] = kind.protocol
    fsspec.register_implementation(protocol, kind, clobber=True)
    store = CheckpointStore(f"{protocol}://{tmp_path}/store")
    with pytest.raises(
        UserError,
        match=r"checkpoint_store: the store does not support conditional writes.*; use a store with conditional writes",
    ):
        store.claim(tmp_path / "run")
    assert files_in(f"{protocol}://{tmp_path}/store") == []


async def test_upload_by_a_process_whose_run_folder_is_gone_claims_nothing(tmp_path: Path) -> None:
    store, run = CheckpointStore(f"file://{tmp_path / 'store'}"), new_run(tmp_path / "run")
    checkpoint = await save(run, 1)
    run.rename(tmp_path / "owner-000002")
    with pytest.raises(StoreFailed, match="cannot upload a checkpoint"):
        store.put(run, checkpoint)
    assert not (tmp_path / "store").exists()
