"""Journal of a run: records of the work since the last checkpoint, from which a resumed run can replay this work.

    group-00000012.jsonl.zst   a finished group, named by its admission number; it is finished once this file exists
    batch-00000008.json        a batch, named by its first group's number; written before the update with this batch
    validated-000005.json      the reward of a step's validation, its metrics, and the reward of each row
    starts.json                the number of starts of the run

Each record is written before it takes effect. It is written to a temporary file, which is then renamed, so it is
complete even if the process is killed. After a checkpoint, the records before it are removed. Numbers continue when the
run is started again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from agent_rft.errors import UserError
from agent_rft.metrics.missing_rollouts import ValidationScore
from agent_rft.rows.durable_write import write_durably
from agent_rft.rows.rollout_files import ROLLOUTS_SUFFIX, read_groups, write_groups
from agent_rft.trainer.loop.checkpoint import LoopState
from agent_rft.trainer.loop.group_buffer import Batch
from agent_rft.types import Group

FORMAT = 1
"""Version of the batch record format. Raise it if older programs must not replay the records."""
UNKNOWN_STARTS = 1000
"""Number that `count_restore` adds to the start count of a journal that was restored from a copy.

The run may have been started again after the copy was made. The copy does not count such later starts.
`UNKNOWN_STARTS` is larger than their number."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Record of a batch: the admission numbers of its groups. `first` is the smallest of these numbers.

    `skipped` pairs the number of each skipped group with the reason, as in `Batch`.
    """

    first: int
    to_train: tuple[int, ...]
    skipped: tuple[tuple[int, str | None], ...]

    @property
    def next_group(self) -> int:
        """Number of the first group after this batch."""
        return self.first + len(self.to_train) + len(self.skipped)


class Journal:
    """Writes and reads a run's `journal` folder. Every write is on disk when the call returns.

    Methods that write raise OSError if the disk is full or read-only; earlier records are unaffected.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writing: set[asyncio.Future[None]] = set()
        self._dropped: int | None = None  # number of the first dropped group
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.tmp"):
            leftover.unlink(missing_ok=True)

    # -- writing -------------------------------------------------------------------------------------------------------

    def count_start(self) -> int:
        """Count a start of the run; return the number of earlier starts."""
        return self._count(1)

    def count_restore(self) -> None:
        """Increase the start count of a journal that was restored from a copy. This keeps attempt numbers unique."""
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
        writing.add_done_callback(self._on_written)
        await asyncio.shield(writing)  # the thread continues when its caller is cancelled

    def _write(self, group: Group) -> None:
        write_groups(self._group_path(group.request.index), [group])

    def _on_written(self, writing: asyncio.Future[None]) -> None:
        self._writing.discard(writing)
        if not writing.cancelled():
            writing.exception()  # mark it as retrieved: the caller raises it unless cancelled

    async def add_batch(self, batch: Batch) -> None:
        """Record a batch, before its update begins. All of its groups must already be recorded."""
        skipped = tuple((group.request.index, kind) for group, kind in batch.skipped)
        trained = tuple(group.request.index for group in batch.to_train)
        record = BatchRecord(min((*trained, *(index for index, _ in skipped))), trained, skipped)
        content = json.dumps({"format": FORMAT} | asdict(record)).encode()
        await asyncio.to_thread(write_durably, self._batch_path(record.first), content)

    async def add_validation(self, validated: LoopState) -> None:
        """Record that a step was validated; `validated` is the state that its checkpoint will contain."""
        score = None if validated.score is None else asdict(validated.score)
        record = {"reward": validated.valid_reward, "metrics": validated.metrics, "score": score}
        content = json.dumps(record).encode()
        await asyncio.to_thread(write_durably, self._validation_path(validated.step), content)

    async def wait_settled(self) -> None:
        """Wait until no group is being written. A write continues even if the task that started it is cancelled."""
        if self._writing:
            await asyncio.wait(set(self._writing))

    async def drop(self, batch: Batch) -> None:
        """Remove a batch, its groups and all later groups, and ignore groups that finish afterwards.

        A resumed run samples these groups again. Later groups are removed, too: they come from the same engines, and
        could become too stale when other groups are trained first.
        """
        first = self._dropped = min(group.request.index for group in batch.all_groups)
        await self.wait_settled()
        for path in sorted(self._folder.iterdir()):  # batches first: a batch must never lack a group
            kind, number = _parse_name(path)
            if kind in ("batch", "group") and number >= first:
                path.unlink(missing_ok=True)

    def remove_covered(self, next_group: int, step: int) -> None:
        """Remove the records that a checkpoint of `step` covers.

        These are the groups and batches before the group number `next_group`, and the validations up to `step`.
        """
        for path in list(self._folder.iterdir()):
            kind, number = _parse_name(path)
            covered = {"group": next_group, "batch": next_group, "validated": step + 1}
            if number < covered.get(kind, 0):
                path.unlink(missing_ok=True)

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def has_batches(self) -> bool:
        return any(self._folder.glob("batch-*"))

    def read_batches(self, next_group: int) -> list[BatchRecord]:
        """Return the batches since a checkpoint, in order; `next_group` is the first group after the checkpoint.

        If the recorded batches do not start at `next_group`, all records are removed, and the result is empty. This is
        the case if the user went back to an earlier checkpoint.

        Raises:
            UserError: A newer version wrote the records.
        """
        records = sorted(map(_read_batch, self._folder.glob("batch-*.json")), key=lambda record: record.first)
        records = [record for record in records if record.first >= next_group]
        ends = [next_group, *(record.next_group for record in records)]
        if [record.first for record in records] != ends[:-1]:
            self.remove_covered(1 << 62, 1 << 62)
            return []
        return records

    def read_batch(self, record: BatchRecord) -> Batch:
        """Load the batch of a record. Its groups are bitwise equal to the groups that were recorded."""
        return Batch(
            [self.read_group(i) for i in record.to_train], [(self.read_group(i), kind) for i, kind in record.skipped]
        )

    def read_group(self, index: int) -> Group:
        [group] = read_groups(self._group_path(index))
        return group

    def read_finished_groups(self, next_group: int) -> Iterator[Group]:
        """Yield the recorded groups that are in no batch yet: the groups from number `next_group` on."""
        for path in sorted(self._folder.glob("group-*")):
            if _parse_name(path)[1] >= next_group:
                yield from read_groups(path)

    def with_validation(self, state: LoopState, min_gain: float) -> LoopState | None:
        """Return `state` with the recorded validation of its step, or None if the step was not validated.

        `min_gain` is the job's setting `early_stop.min_gain`.
        """
        try:
            found = json.loads(self._validation_path(state.step).read_text())
        except FileNotFoundError:
            return None
        score = found.get("score")  # records of 0.2.0 have none
        score = None if score is None else ValidationScore(**score)
        return state.with_validation(found["reward"], found["metrics"], score, min_gain)

    # -- files ---------------------------------------------------------------------------------------------------------

    def _group_path(self, index: int) -> Path:
        return self._folder / f"group-{index:08d}{ROLLOUTS_SUFFIX}"

    def _batch_path(self, first: int) -> Path:
        return self._folder / f"batch-{first:08d}.json"

    def _validation_path(self, step: int) -> Path:
        return self._folder / f"validated-{step:06d}.json"


def _parse_name(path: Path) -> tuple[str, int]:
    """Return the kind and number of a record's file."""
    kind, _, number = path.name.partition(".")[0].partition("-")
    return kind, int(number or 0)


def _read_batch(path: Path) -> BatchRecord:
    saved = json.loads(path.read_text())
    if saved.pop("format") > FORMAT:
        raise UserError(f"{path} was written by a newer version of agent-rft; continue with that version")
    skipped = tuple((index, kind) for index, kind in saved["skipped"])
    return BatchRecord(saved["first"], tuple(saved["to_train"]), skipped)
