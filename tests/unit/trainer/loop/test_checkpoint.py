"""Checkpoints of a run, seen by another thread than the one that saves them."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from agent_rft.errors import UserError
from agent_rft.trainer.loop.checkpoint import Checkpoints, LoopState


async def test_a_checkpoint_that_is_being_written_or_removed_is_none(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)

    async def nothing(path: Path) -> None: ...

    saved = await checkpoints.save(LoopState(1, 1, 0, [], 0, None), nothing)
    for half in ("step-000002.tmp", "step-000003-removed.tmp"):
        (tmp_path / half).mkdir()
        (tmp_path / half / "loop.json").write_text((saved / "loop.json").read_text())
    assert [path for path, _ in checkpoints.list_all()] == [saved]
    Checkpoints(tmp_path)  # as the next start does
    assert os.listdir(tmp_path) == [saved.name]


async def test_who_reads_while_checkpoints_are_removed_sees_whole_ones_only(tmp_path: Path) -> None:
    checkpoints, ended = Checkpoints(tmp_path), threading.Event()

    async def many_files(path: Path) -> None:
        for i in range(20):
            (path / f"{i}").touch()

    def read() -> set[int]:
        found = set()
        while not ended.is_set():
            for path, _ in checkpoints.list_all():
                with suppress(FileNotFoundError):
                    files = len(list(path.iterdir()))
                    found |= {files} if path.exists() else set()
        return found

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for step in range(1, 30):
            await checkpoints.save(LoopState(step, step, 0, [], 0, None), many_files)
        ended.set()
    assert reading.result() == {21}


async def test_the_loop_goes_on_while_a_checkpoint_reaches_the_disk(tmp_path: Path) -> None:
    turns: list[int] = []

    async def written(path: Path) -> None:
        asyncio.get_running_loop().call_soon(turns.append, 1)

    checkpoints = Checkpoints(tmp_path)
    await checkpoints.save(LoopState(1, 1, 0, [], 0, None, is_servable=False), written)
    assert turns == [1], "rollouts wait while files of many GB are synced"
    await checkpoints.update(LoopState(1, 1, 0, [], 0, None))
    assert [state.is_servable for _, state in checkpoints.list_all()] == [True]


async def test_a_kill_while_a_checkpoint_is_updated_leaves_it_whole(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)

    async def nothing(path: Path) -> None: ...

    saved = await checkpoints.save(LoopState(1, 1, 0, [], 0, None), nothing)
    (saved / "loop.json.tmp").write_text("{")
    assert Checkpoints(tmp_path).latest() == checkpoints.latest()
    assert os.listdir(saved) == ["loop.json"]


async def test_a_copy_that_ends_while_a_checkpoint_is_saved_removes_with_it(tmp_path: Path) -> None:
    class Copies:
        def __init__(self) -> None:
            self.pool, self.removing = ThreadPoolExecutor(4), list[Future[None]]()

        def add(self, checkpoint: Path, prune: Callable[[], None]) -> None:
            self.removing += [self.pool.submit(prune) for _ in range(4)]

        def is_uploading(self, checkpoint: Path) -> bool:
            return False

    async def many_files(path: Path) -> None:
        for i in range(20):
            (path / f"{i}").touch()

    copies = Copies()
    checkpoints = Checkpoints(tmp_path, copies)
    with copies.pool:
        for step in range(1, 30):
            await checkpoints.save(LoopState(step, step, 0, [], 0, None, is_servable=False), many_files)
    assert [removing.exception() for removing in copies.removing] == [None] * len(copies.removing)
    assert os.listdir(tmp_path) == ["step-000029"]


async def test_a_validation_in_which_nothing_was_graded_pushes_out_no_better_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)

    async def nothing(path: Path) -> None: ...

    for step, reward in enumerate([0.9, math.nan, 0.1, 0.8, math.nan, 0.7, 0.2], start=1):
        await checkpoints.save(LoopState(step, step, 0, [], 0, reward), nothing)
    assert [state.step for _, state in checkpoints.list_all()] == [1, 4, 6, 7]


async def test_of_equal_rewards_the_earliest_checkpoints_are_kept_and_without_any_the_latest(tmp_path: Path) -> None:
    async def nothing(path: Path) -> None: ...

    for name, reward, kept in (("equal", 0.9, [1, 2, 3, 6]), ("none", None, [4, 5, 6])):
        checkpoints = Checkpoints(tmp_path / name)
        for step in range(1, 7):
            await checkpoints.save(LoopState(step, step, 0, [], 0, reward), nothing)
        assert [state.step for _, state in checkpoints.list_all()] == kept


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 3}', '{"format": "x"}', "\0" * 100])
def test_a_damaged_checkpoint_is_named_with_the_fix(tmp_path: Path, text: str) -> None:
    (tmp_path / "step-000004").mkdir()
    (tmp_path / "step-000004" / "loop.json").write_text(text)
    with pytest.raises(UserError, match=r"step-000004 is damaged .* restore this checkpoint, or start a new run"):
        Checkpoints(tmp_path).latest()
