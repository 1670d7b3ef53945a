"""Upload of a run's checkpoints to the operator's checkpoint store, and download before the run resumes.

Uploads run in the background, and training never waits for them. The newest checkpoint is always uploaded next. A
checkpoint is not deleted during its upload, so even a slow store receives complete checkpoints.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from agent_rft.cluster.records.checkpoint_claims import CheckpointsTaken
from agent_rft.cluster.records.checkpoint_store import CheckpointStore, StoreFailed
from agent_rft.cluster.records.redaction import to_plain_json
from agent_rft.errors import RftError
from agent_rft.events import CheckpointStoreClaimed, CheckpointStoreFailed, CheckpointUploaded, PhaseStarted
from agent_rft.loop_protocols import Emit
from agent_rft.rows.ownership import FolderClaim
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.trainer.loop.checkpoint import latest_checkpoint

PAUSES_S = (5.0, 30.0, 120.0)
"""Seconds before each retry of a failed upload. After the last retry, the next checkpoint is uploaded instead."""
LAST_UPLOAD_TIMEOUT_S = 900.0
FETCH_PAUSES_S = (1.0, 10.0, 60.0)


def open_store(operator: OperatorConfig) -> CheckpointStore | None:
    """Return the operator's checkpoint store; None if it is not configured.

    Raises:
        UserError: The setting is invalid, or a library is missing.
    """
    return None if operator.checkpoint_store is None else CheckpointStore(operator.checkpoint_store)


def restore_checkpoints(
    run_folder: Path,
    store: CheckpointStore | None,
    notify: Callable[[str], object],
    sleep: Callable[[float], None] = time.sleep,
    owner: FolderClaim | None = None,
) -> None:
    """Download the checkpoints of a run into its run folder, if the store has a newer checkpoint than the folder.

    `notify` is called with a message about the result. If the store fails, the run resumes from a checkpoint in its
    folder. `owner` is this process's claim on the run folder. If it is set, the run's checkpoints in the store are
    claimed first.

    Raises:
        FolderLost: Another process has taken over the run folder.
        RftError: The store fails and the folder has no checkpoint, or a checkpoint in the store is damaged.
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
                notify(f"{to_plain_json(str(error))}; the run resumes from the checkpoint in its folder")
                return
            if pause is None:
                fix = (
                    "try again when the store is available, or set checkpoint_store: null to start from the beginning "
                    "without a store"
                )
                raise RftError(f"{to_plain_json(str(error))}; {fix}", public_message=error.public_message) from None
            sleep(pause)
    if fetched:
        notify(f"{run_folder.name} resumes from {fetched[-1]} in the checkpoint store")


class CheckpointUploader:
    """Uploads the checkpoints of a run in the background; implements `CheckpointUploads`.

    At the end of a run, `finish` waits up to `patience_s` for the upload of the last checkpoint. `sleep` waits for
    a number of seconds.
    """

    def __init__(
        self,
        store: CheckpointStore,
        run_folder: Path,
        emit: Emit,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        patience_s: float = LAST_UPLOAD_TIMEOUT_S,
    ) -> None:
        self._store = store
        self._run_folder = run_folder
        self._emit = emit
        self._sleep = sleep
        self._patience_s = patience_s
        self._next: Path | None = None
        self._current: Path | None = None
        self._uploading: asyncio.Task[None] | None = None
        self._is_taken = False

    def add(self, checkpoint: Path, prune: Callable[[], None]) -> None:
        if self._is_taken:
            return
        self._next = checkpoint
        if self._uploading is None or self._uploading.done():
            self._uploading = asyncio.create_task(self._upload_pending(prune))

    def is_uploading(self, checkpoint: Path) -> bool:
        return checkpoint in (self._next, self._current)

    async def finish(self) -> None:
        """Wait up to `patience_s` for the upload of the last checkpoint. Cancel the upload if it takes longer."""
        if self._uploading is None or self._uploading.done():
            return
        self._emit(PhaseStarted(phase="upload"))
        done, _ = await asyncio.wait({self._uploading}, timeout=self._patience_s)
        if not done:
            cause = f"the upload took longer than {self._patience_s:.0f} s"
            self._emit(CheckpointStoreFailed(action="upload", cause=cause))
            self.stop()

    def stop(self) -> None:
        """Cancel the upload in progress, and start no more uploads."""
        self._store.stop()
        if self._uploading is not None:
            self._uploading.cancel()

    async def _upload_pending(self, prune: Callable[[], None]) -> None:
        num_failures = 0
        while self._next is not None:
            self._current, self._next = self._next, None
            step, started = int(self._current.name.removeprefix("step-")), time.monotonic()
            try:
                num_bytes = await asyncio.to_thread(self._store.put, self._run_folder, self._current)
            except CheckpointsTaken:
                self._stop_for_new_owner(step)
                break
            except RftError as error:
                if self._next == self._current:
                    continue  # the checkpoint was replaced during the upload
                pause = PAUSES_S[num_failures] if num_failures < len(PAUSES_S) else None
                self._emit(CheckpointStoreFailed(step=step, action="upload", cause=error.message, retry_in_s=pause))
                num_failures = 0 if pause is None else num_failures + 1
                if pause is not None:
                    await self._sleep(pause)
                    self._next = self._next or self._current
                continue
            num_failures, self._current = 0, None
            if num_bytes:
                self._emit(CheckpointUploaded(step=step, num_bytes=num_bytes, duration_s=time.monotonic() - started))
            try:
                await asyncio.to_thread(prune)  # first, since the store keeps only what the folder has
                await asyncio.to_thread(self._store.prune, self._run_folder)
            except CheckpointsTaken:
                self._stop_for_new_owner(step)
                break
            except (OSError, RftError) as error:
                self._emit(CheckpointStoreFailed(step=step, action="remove", cause=str(error)))
        self._current = None

    def _stop_for_new_owner(self, step: int) -> None:
        """Stop uploading, since another process has claimed the checkpoints."""
        self._emit(CheckpointStoreClaimed(step=step))
        self._is_taken, self._next = True, None
