"""The file store, with local and remote blobs: files exist completely or not at all and are listed in pages."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from agent_rft.cluster.records.blobs import Blobs, FolderBlobs, RemoteBlobs
from agent_rft.errors import UserError
from agent_rft.serve.stores.database import Database
from agent_rft.serve.stores.file_store import FileStore, FileTooLarge, UnknownFile

Make = Callable[[Path], Blobs]


def local(folder: Path) -> Blobs:
    return FolderBlobs(folder / "files")


def remote(folder: Path) -> Blobs:
    return RemoteBlobs(f"file://{folder / 'remote'}", folder / "cache")


async def stream(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def left_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("file-*") if path.is_file()]


@pytest.mark.parametrize("make", [local, remote])
async def test_a_file_is_stored_read_and_deleted(any_database: Database, tmp_path: Path, make: Make) -> None:
    store = FileStore(any_database, make(tmp_path), tmp_path)
    record = await store.create(stream(b"one ", b"two"), "a/b.csv", "fine-tune-results")
    assert (record.filename, record.num_bytes, record.purpose) == ("b.csv", 7, "fine-tune-results")
    assert store.get(record.id) == record
    assert store.path(record.id).read_bytes() == b"one two" == store.path(record.id).read_bytes()
    store.delete(record.id)
    with pytest.raises(UnknownFile):
        store.path(record.id)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("make", [local, remote])
def test_check_fails_once_the_storage_is_gone(tmp_path: Path, make: Make) -> None:
    blobs = make(tmp_path)
    blobs.check()
    blobs.check()
    for place in ("files", "remote"):
        shutil.rmtree(tmp_path / place, ignore_errors=True)
        (tmp_path / place).write_text("in place of the folder")
    with pytest.raises(OSError):
        blobs.check()


async def test_a_remote_file_can_be_read_by_another_server(any_database: Database, tmp_path: Path) -> None:
    record = await FileStore(any_database, remote(tmp_path), tmp_path).create(stream(b"x"), "a", "evals")
    elsewhere = RemoteBlobs(f"file://{tmp_path / 'remote'}", tmp_path / "another-cache")
    assert FileStore(any_database, elsewhere, tmp_path).path(record.id).read_bytes() == b"x"


@pytest.mark.parametrize("url", ["nowhere://bucket", "git-nothing://"])
def test_an_unsupported_url_is_a_user_error(url: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--files"):
        RemoteBlobs(url, tmp_path)


async def test_an_upload_that_breaks_or_is_too_large_leaves_nothing(any_database: Database, tmp_path: Path) -> None:
    store = FileStore(any_database, local(tmp_path), tmp_path, max_bytes=10)

    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await store.create(broken(), "a", "evals")
    with pytest.raises(FileTooLarge, match="larger than 10 bytes"):
        await store.create(stream(b"12345", b"678901"), "a", "evals")
    assert store.list() == ([], False)
    assert left_in(tmp_path) == []


async def test_a_file_whose_row_cannot_be_inserted_is_not_kept(any_database: Database, tmp_path: Path) -> None:
    store = FileStore(any_database, local(tmp_path), tmp_path)
    async with store.receive() as incoming:
        await incoming.write(b"x")
        with pytest.raises(IntegrityError):
            await store.keep(incoming, "a", None)  # type: ignore[arg-type]
    assert left_in(tmp_path) == []


async def test_pages_stay_correct_when_files_are_deleted(any_database: Database, tmp_path: Path) -> None:
    store = FileStore(any_database, local(tmp_path), tmp_path)
    made = [await store.create(stream(b"x"), str(number), "evals") for number in range(6)]
    first, more = store.list(limit=2)
    assert [record.filename for record in first] == ["5", "4"] and more
    store.delete(made[3].id)
    second, more = store.list(after=first[-1].id, limit=2)
    assert [record.filename for record in second] == ["2", "1"] and more
    last, more = store.list(after=second[-1].id, limit=2)
    assert [record.filename for record in last] == ["0"] and not more
    with pytest.raises(UnknownFile):
        store.list(after=made[3].id)


async def test_concurrent_uploads_do_not_mix(any_database: Database, tmp_path: Path) -> None:
    store = FileStore(any_database, local(tmp_path), tmp_path)
    contents = [bytes([number]) * 1000 for number in range(16)]
    made = await asyncio.gather(*(store.create(stream(content), "a", "evals") for content in contents))
    assert [store.path(record.id).read_bytes() for record in made] == contents
