"""Checkpoints of a run, seen by another thread than the one that saves them."""

from __future__ import annotations

from pathlib import Path

from trainer.checkpoint import Checkpoints, LoopState


async def test_a_checkpoint_that_is_still_being_written_is_none_yet(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)

    async def nothing(path: Path) -> None: ...

    saved = await checkpoints.save(LoopState(1, 1, 0, [], 0, None, "digest"), nothing)
    (tmp_path / "step-000002.tmp").mkdir()
    (tmp_path / "step-000002.tmp" / "loop.json").write_text((saved / "loop.json").read_text())
    (tmp_path / "step-000003").mkdir()  # what is left of one that is being removed
    assert [path for path, _ in checkpoints.all()] == [saved]
