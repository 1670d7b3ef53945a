"""Checkpoints of two processes in S3, by the real client: claims depend on its conditional writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from agent_rft.cluster.records.checkpoint_claims import CheckpointsTaken
from agent_rft.cluster.records.checkpoint_store import CheckpointStore
from agent_rft.errors import UserError
from tests.support.fake_s3 import FakeS3
from tests.unit.cluster.records.test_checkpoint_store import contents, new_run, save

URL = "s3://bucket/checkpoints"


@pytest.fixture
def s3_settings() -> Iterator[dict[str, object]]:
    """The settings of all S3 clients of this process, for the duration of a test."""
    before = fsspec.config.conf.get("s3")
    settings: dict[str, object] = {"key": "key", "secret": "secret"}
    fsspec.config.conf["s3"] = settings
    yield settings
    fsspec.config.conf.pop("s3")
    if before is not None:
        fsspec.config.conf["s3"] = before


@pytest.mark.parametrize("names_condition", [True, False])
async def test_later_process_owns_the_checkpoints_of_a_run(
    tmp_path: Path, s3_settings: dict[str, object], names_condition: bool
) -> None:
    run, there = new_run(tmp_path / "run"), tmp_path / "there" / "run"
    async with FakeS3(names_condition=names_condition) as server:
        s3_settings["endpoint_url"] = server.url
        first, second = CheckpointStore(URL), CheckpointStore(URL)
        await asyncio.to_thread(first.put, run, await save(run, 1, 0.5))
        await asyncio.to_thread(second.claim, there)
        assert await asyncio.to_thread(second.fetch, there) == ["step-000001"]
        with pytest.raises(CheckpointsTaken):
            await asyncio.to_thread(first.put, run, await save(run, 2))
        for step in (2, 3, 4, 5):
            await asyncio.to_thread(second.put, there, await save(there, step, 0.5 + step))
            await asyncio.to_thread(second.prune, there)
        assert {key.split("/")[2] for key in server.objects} == {"owner-000002", "owner-000002.json"}
        lost = tmp_path / "lost" / "run"
        assert await asyncio.to_thread(CheckpointStore(URL).fetch, lost) == [f"step-00000{step}" for step in (3, 4, 5)]
        assert contents(lost / "checkpoints") == contents(there / "checkpoints")


async def test_processes_that_claim_at_the_same_moment_get_different_numbers(
    tmp_path: Path, s3_settings: dict[str, object]
) -> None:
    async with FakeS3() as server:
        s3_settings["endpoint_url"] = server.url
        stores = [CheckpointStore(URL) for _ in range(4)]
        await asyncio.gather(*(asyncio.to_thread(store.claim, tmp_path / "run") for store in stores))
        assert sorted(server.objects) == [f"checkpoints/run/owner-00000{number}.json" for number in range(1, 5)]


async def test_server_that_overwrites_files_is_refused(tmp_path: Path, s3_settings: dict[str, object]) -> None:
    async with FakeS3(is_conditional=False) as server:
        s3_settings["endpoint_url"] = server.url
        store = CheckpointStore(URL)
        with pytest.raises(UserError, match="checkpoint_store: the store does not support conditional writes"):
            await asyncio.to_thread(store.claim, tmp_path / "run")
        assert server.objects == {}
