"""Checkpoints on their way to the operator's checkpoint store and back. Training never waits for it.

The newest checkpoint is copied in the background. If another one is complete before, it is next; the one that is being
copied stays on disk until it is done, so that a slow store gets some of them whole and not all of them in part.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from agent_rft.cluster.records.checkpoint_claims import CheckpointsTaken
from agent_rft.cluster.records.checkpoint_store import CheckpointStore, StoreFailed
from agent_rft.cluster.records.redact import plain
from agent_rft.errors import RftError
from agent_rft.events import CheckpointCopied, CheckpointStoreFailed, CheckpointStoreTaken, PhaseBegan
from agent_rft.protocols import Emit
from agent_rft.rows.ownership import Claim
from agent_rft.spec.operator.config import Operator
from agent_rft.trainer.loop.checkpoint import latest_checkpoint

PAUSES_S = (5.0, 30.0, 120.0)
"""The pause before each further attempt to copy a checkpoint; after the last one the next checkpoint is awaited."""
LAST_COPY_S = 900.0
FETCH_PAUSES_S = (1.0, 10.0, 60.0)


def open_store(operator: Operator) -> CheckpointStore | None:
    """The operator's checkpoint store, if there is one.

    Raises:
        UserError: The setting is wrong, or a library is missing.
    """
    return None if operator.checkpoint_store is None else CheckpointStore(operator.checkpoint_store)


def restore(
    run_folder: Path,
    store: CheckpointStore | None,
    tell: Callable[[str], object],
    sleep: Callable[[float], None] = time.sleep,
    owner: Claim | None = None,
) -> None:
    """Bring the checkpoints of a run into its folder, if the store has a newer one than the folder.

    `tell` gets a sentence about what was done. A folder with a checkpoint is used as it is if the store fails. `owner`
    is given by the process that is about to train: it claims the run's checkpoints in the store first.

    Raises:
        FolderLost: Another process has taken over the run folder.
        RftError: The store fails, or a checkpoint there is damaged.
    """
    if store is None:
        return
    for pause in (*FETCH_PAUSES_S, None):
        try:
            if owner is not None:
                owner.check()
                store.claim(run_folder)
            fetched = store.fetch(run_folder)
            break
        except StoreFailed as error:
            if latest_checkpoint(run_folder / "checkpoints") is not None:
                tell(f"{plain(str(error))}; the run resumes from the checkpoint in its folder")
                return
            if pause is None:
                remedy = "try again when it works, or set checkpoint_store: null to begin without what is there"
                raise RftError(f"{plain(str(error))}; {remedy}", public=error.public) from None
            sleep(pause)
    if fetched:
        tell(f"{run_folder.name} resumes from {fetched[-1]} of the checkpoint store")


class Copies:
    """Copies the checkpoints of a run; see `Copies` in trainer/loop/checkpoint.py. `sleep` takes seconds.

    The end of a run waits up to `patience_s` for the copy of its last checkpoint.
    """

    def __init__(
        self,
        store: CheckpointStore,
        run_folder: Path,
        emit: Emit,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        patience_s: float = LAST_COPY_S,
    ) -> None:
        self._store = store
        self._run_folder = run_folder
        self._emit = emit
        self._sleep = sleep
        self._patience_s = patience_s
        self._due: Path | None = None
        self._current: Path | None = None
        self._working: asyncio.Task[None] | None = None
        self._taken = False

    def add(self, checkpoint: Path, prune: Callable[[], None]) -> None:
        if self._taken:
            return
        self._due = checkpoint
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(prune))

    def needs(self, checkpoint: Path) -> bool:
        return checkpoint in (self._due, self._current)

    async def finish(self) -> None:
        """Wait for the copy of the last checkpoint, for a time; what is not done then is not done."""
        if self._working is None or self._working.done():
            return
        self._emit(PhaseBegan(phase="copy"))
        done, _ = await asyncio.wait({self._working}, timeout=self._patience_s)
        if not done:
            self._emit(CheckpointStoreFailed(action="copy", cause=f"it took longer than {self._patience_s:.0f} s"))
            self.stop()

    def stop(self) -> None:
        """Copy nothing more."""
        self._store.stop()
        if self._working is not None:
            self._working.cancel()

    async def _work(self, prune: Callable[[], None]) -> None:
        num_failures = 0
        while self._due is not None:
            self._current, self._due = self._due, None
            step, started = int(self._current.name.removeprefix("step-")), time.monotonic()
            try:
                num_bytes = await asyncio.to_thread(self._store.put, self._run_folder, self._current)
            except CheckpointsTaken:
                self._end_taken(step)
                break
            except RftError as error:
                if self._due == self._current:
                    continue  # it was written again meanwhile
                pause = PAUSES_S[num_failures] if num_failures < len(PAUSES_S) else None
                self._emit(CheckpointStoreFailed(step=step, action="copy", cause=error.message, again_in_s=pause))
                num_failures = 0 if pause is None else num_failures + 1
                if pause is not None:
                    await self._sleep(pause)
                    self._due = self._due or self._current
                continue
            num_failures, self._current = 0, None
            if num_bytes:
                self._emit(CheckpointCopied(step=step, num_bytes=num_bytes, seconds=time.monotonic() - started))
            try:
                await asyncio.to_thread(prune)  # first: the store keeps what is kept here
                await asyncio.to_thread(self._store.prune, self._run_folder)
            except CheckpointsTaken:
                self._end_taken(step)
                break
            except (OSError, RftError) as error:
                self._emit(CheckpointStoreFailed(step=step, action="remove", cause=str(error)))
        self._current = None

    def _end_taken(self, step: int) -> None:
        """Copy nothing more, since another process has claimed the checkpoints."""
        self._emit(CheckpointStoreTaken(step=step))
        self._taken, self._due = True, None
