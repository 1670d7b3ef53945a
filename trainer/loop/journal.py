"""The journal: what a run did since its last checkpoint, written before it counts, so that it can be replayed.

    group-00000012.jsonl.zst   a finished group, by its admission number; it is finished once this file exists
    batch-00000008.json        a batch, by the number of its first group, written ahead of its update
    validated-000005.json      the reward of a step's validation, and its metrics
    starts.json                how often the run was started

Each file is written beside and renamed, so a kill at any moment leaves whole ones. A checkpoint makes what it covers
superfluous. Numbers go on over all starts of a run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from agent_rft.errors import UserError
from agent_rft.rows.durable import write_durably
from agent_rft.rows.rollout_files import ROLLOUTS_SUFFIX, read_groups, write_groups
from agent_rft.trainer.loop.buffer import Batch
from agent_rft.trainer.loop.checkpoint import LoopState
from agent_rft.types import Group

FORMAT = 1
"""The format of a batch's record. Raise it when older programs must not replay it."""
UNKNOWN_STARTS = 1000
"""More than a run starts between two checkpoints."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch by the admission numbers of its groups; `skipped` pairs them with reasons, as `Batch` does."""

    first: int
    trained: tuple[int, ...]
    skipped: tuple[tuple[int, str | None], ...]

    @property
    def end(self) -> int:
        """The number of the first group after it."""
        return self.first + len(self.trained) + len(self.skipped)


class Journal:
    """Writes and reads a run's `journal` folder. Every write is on disk when it returns.

    Raises OSError if the disk is full or read-only; what was written before is untouched.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writing: set[asyncio.Future[None]] = set()
        self._dropped: int | None = None  # the first group that was dropped
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.tmp"):
            leftover.unlink(missing_ok=True)

    # -- writing -------------------------------------------------------------------------------------------------------

    def started(self) -> int:
        """Count a start of the run; returns how many there were before."""
        return self._count(1)

    def restored(self) -> None:
        """Count the starts that a run may have had since this journal was copied: attempts of rollouts never repeat."""
        if (self._folder / "starts.json").exists():
            self._count(UNKNOWN_STARTS)

    def _count(self, starts: int) -> int:
        path = self._folder / "starts.json"
        before = json.loads(path.read_text())["starts"] if path.exists() else 0
        write_durably(path, json.dumps({"starts": before + starts}).encode())
        return int(before)

    async def add_group(self, group: Group) -> None:
        index = group.request.index
        if self._dropped is not None and index >= self._dropped:
            return
        writing = asyncio.ensure_future(asyncio.to_thread(self._write, group))
        self._writing.add(writing)
        writing.add_done_callback(self._written)
        await asyncio.shield(writing)  # a thread goes on when its caller is cancelled

    def _write(self, group: Group) -> None:
        write_groups(self._group(group.request.index), [group])

    def _written(self, writing: asyncio.Future[None]) -> None:
        self._writing.discard(writing)
        if not writing.cancelled():
            writing.exception()  # its caller has it, unless it was cancelled

    async def add_batch(self, batch: Batch) -> None:
        """Record a batch whose groups are all recorded; only then may its update begin."""
        skipped = tuple((group.request.index, kind) for group, kind in batch.skipped)
        trained = tuple(group.request.index for group in batch.trained)
        record = BatchRecord(min((*trained, *(index for index, _ in skipped))), trained, skipped)
        content = json.dumps({"format": FORMAT} | asdict(record)).encode()
        await asyncio.to_thread(write_durably, self._batch(record.first), content)

    async def add_validation(self, validated: LoopState) -> None:
        """Record that a step was validated, by the state that its checkpoint will hold."""
        content = json.dumps({"reward": validated.valid_reward, "metrics": validated.metrics}).encode()
        await asyncio.to_thread(write_durably, self._validation(validated.step), content)

    async def settled(self) -> None:
        """Return when no group is being written: a write goes on when its caller is cancelled."""
        if self._writing:
            await asyncio.wait(set(self._writing))

    async def drop(self, batch: Batch) -> None:
        """Forget a batch and all groups from its first on, also those to come: a resumed run samples them again.

        Those after it come from the same engines. They may also be too stale if other groups are trained before them.
        """
        first = self._dropped = min(group.request.index for group in batch.all_groups)
        await self.settled()
        for path in sorted(self._folder.iterdir()):  # batches first: one must never lack a group
            kind, number = _parsed(path)
            if kind in ("batch", "group") and number >= first:
                path.unlink(missing_ok=True)

    def forget(self, next_group: int, step: int) -> None:
        """Remove what a checkpoint of `step` covers: batches and groups before `next_group`."""
        for path in list(self._folder.iterdir()):
            kind, number = _parsed(path)
            covered = {"group": next_group, "batch": next_group, "validated": step + 1}
            if number < covered.get(kind, 0):
                path.unlink(missing_ok=True)

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def has_batches(self) -> bool:
        return any(self._folder.glob("batch-*"))

    def batches(self, next_group: int) -> list[BatchRecord]:
        """The batches that follow a checkpoint whose first group after it is `next_group`, in order.

        If they do not follow it, as when a user has gone back to an earlier checkpoint, all records are removed.

        Raises:
            UserError: A newer version wrote them.
        """
        records = sorted(map(_read_batch, self._folder.glob("batch-*.json")), key=lambda record: record.first)
        records = [record for record in records if record.first >= next_group]
        ends = [next_group, *(record.end for record in records)]
        if [record.first for record in records] != ends[:-1]:
            self.forget(1 << 62, 1 << 62)
            return []
        return records

    def batch(self, record: BatchRecord) -> Batch:
        """The batch of a record, with its groups bit for bit."""
        return Batch([self.group(i) for i in record.trained], [(self.group(i), kind) for i, kind in record.skipped])

    def group(self, index: int) -> Group:
        [group] = read_groups(self._group(index))
        return group

    def finished(self, next_group: int) -> Iterator[Group]:
        """The recorded groups from number `next_group` on, which no batch has taken yet."""
        for path in sorted(self._folder.glob("group-*")):
            if _parsed(path)[1] >= next_group:
                yield from read_groups(path)

    def with_validation(self, state: LoopState) -> LoopState | None:
        """The state with its step's validation, or None if the step was not validated."""
        try:
            found = json.loads(self._validation(state.step).read_text())
        except FileNotFoundError:
            return None
        return state.with_validation(found["reward"], found["metrics"])

    # -- files ---------------------------------------------------------------------------------------------------------

    def _group(self, index: int) -> Path:
        return self._folder / f"group-{index:08d}{ROLLOUTS_SUFFIX}"

    def _batch(self, first: int) -> Path:
        return self._folder / f"batch-{first:08d}.json"

    def _validation(self, step: int) -> Path:
        return self._folder / f"validated-{step:06d}.json"


def _parsed(path: Path) -> tuple[str, int]:
    """The kind and number of a record's file."""
    kind, _, number = path.name.partition(".")[0].partition("-")
    return kind, int(number or 0)


def _read_batch(path: Path) -> BatchRecord:
    saved = json.loads(path.read_text())
    if saved.pop("format") > FORMAT:
        raise UserError(f"{path} was written by a newer version of agent-rft; continue with that version")
    skipped = tuple((index, kind) for index, kind in saved["skipped"])
    return BatchRecord(saved["first"], tuple(saved["trained"]), skipped)
