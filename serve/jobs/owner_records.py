"""Records from a job's run folder, for the job's owner. Paths are replaced, and operator-only messages are removed."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent_rft.cluster.records.index_tables import IndexedRollout, shorten_names
from agent_rft.cluster.records.redaction import replace_substrings
from agent_rft.cluster.records.rollout_filter import RolloutFilter
from agent_rft.cluster.records.rollout_index import Order, RolloutFile, RolloutIndex, UnknownRollout, is_busy
from agent_rft.cluster.records.row_rewards import RowOrder, RowRewards, compute_row_rewards, rows_after
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.views.report.report_page import write_report
from agent_rft.cluster.views.rollout_tokens import TokenRange, find_tokenizer, read_token_range
from agent_rft.errors import RftError
from agent_rft.rows.rollout_files import RewrittenFile
from agent_rft.rows.rollout_json import outcome_to_json, request_to_json
from agent_rft.serve.jobs.processes.store_sink import public_event_fields
from agent_rft.serve.stores.job_states import UnknownCursor
from agent_rft.serve.stores.job_store import JobStore
from agent_rft.serve.stores.job_tables import JobRecord
from agent_rft.spec.job import FILES
from agent_rft.stored_events import RunEvent
from agent_rft.types import DiscardedRollout, Group, GroupRequest, Rollout

INDEX_S = 10.0
"""Seconds that one request may spend on indexing rollouts that a killed driver did not index."""
PAGE_BYTES = 8 << 20
"""Size in bytes after which a page of rollouts ends."""
FRESH_S = 20.0
"""Seconds for which the report of a running job is reused."""
SEARCH_S = 5.0
"""Maximum time in seconds that one request spends on a text search. The next request continues the search."""
MAX_KEPT = 64
"""Maximum number of jobs whose records stay open.

Above this number, the records of jobs without requests in progress are closed."""


class NotIndexed(RftError):
    """The rollouts are still being indexed, or the report is being written. The same request will succeed later."""


@dataclass(frozen=True, slots=True)
class RolloutPage:
    """Page of rollouts. The next page starts after the rollout with the id `last`."""

    found: list[IndexedRollout]
    has_more: bool
    last: str | None


WholeRollout = tuple[IndexedRollout, dict[str, Any], dict[str, Any]]
"""Tuple of a rollout's index entry, its group request as a JSON object, and the rollout as a JSON object."""


@dataclass
class _JobState:
    """State shared by all requests for one job. `num_requests` counts the requests in progress."""

    index: RolloutIndex
    indexing: threading.Lock = field(default_factory=threading.Lock)
    reporting: threading.Lock = field(default_factory=threading.Lock)
    num_requests: int = 0


class JobRecords:
    """Records of all jobs of a server. Methods block while they read files, but they never wait for another request."""

    def __init__(
        self,
        store: JobStore,
        runs: Path,
        index_of: Callable[[Path], RolloutIndex] = RolloutIndex,
        write: Callable[[RunFolder], Path] = write_report,
        max_kept: int = MAX_KEPT,
        search_s: float = SEARCH_S,
    ) -> None:
        self.store = store
        self._runs = runs
        self._index_of = index_of
        self._write = write
        self._max_kept = max_kept
        self._search_s = search_s
        self._kept: dict[str, _JobState] = {}
        self._keeping = threading.Lock()

    def summaries(
        self, job: JobRecord, rollout_filter: RolloutFilter, order: Order, limit: int, after: str | None
    ) -> RolloutPage:
        """Return a page of rollout summaries.

        Raises:
            NotIndexed: Some rollouts must be indexed first, or were rewritten during the request.
            UnknownRollout: The rollout `after` does not exist.
            UnknownValue: The filter contains a value that no rollout has.
        """
        with self._open_index(job) as index:
            return self._list_page(index, rollout_filter, order, limit, after)

    def rollouts(
        self, job: JobRecord, rollout_filter: RolloutFilter, order: Order, limit: int, after: str | None
    ) -> tuple[list[WholeRollout], RolloutPage]:
        """Return complete rollouts and the page of their index entries. Large rollouts make the page shorter.

        Raises the same errors as `summaries`.
        """
        with self._open_index(job) as index:
            listing, num_bytes = self._list_page(index, rollout_filter, order, limit, after), 0
            for count, one in enumerate(listing.found, start=1):
                num_bytes += one.place.length + one.group_position.length
                if num_bytes > PAGE_BYTES and count < len(listing.found):
                    listing = RolloutPage(listing.found[:count], has_more=True, last=one.id)
                    break
            read = index.read_rollouts(listing.found)
            found = [
                (one, _without_nan(request_to_json(request)), _without_nan(_public_json(outcome)))
                for one, request, outcome in read
            ]
            return found, listing

    def rollout(self, job: JobRecord, id: str) -> WholeRollout:
        """Return one rollout, without the ids and log-probabilities of its tokens.

        Raises:
            NotIndexed: As in `summaries`.
            UnknownRollout: The rollout does not exist.
        """
        with self._open_index(job) as index:
            one, request, outcome = _read_rollout(index, id)
            public = _public_json(outcome)
            for segment in public.get("segments", ()):
                segment["num_tokens"] = len(segment.pop("token_ids"))
                del segment["logprobs"]
            return one, _without_nan(request_to_json(request)), _without_nan(public)

    def tokens(self, job: JobRecord, id: str, segment: int, start: int, limit: int) -> TokenRange:
        """Return up to `limit` tokens of a rollout's segment, beginning at token `start`.

        Raises:
            NotIndexed, UnknownRollout: As in `rollout`.
            UnknownValue: The segment or token does not exist.
        """
        with self._open_index(job) as index:
            _, _, outcome = _read_rollout(index, id)
        run = RunFolder(self._runs / job.id)
        folders = [run.job().get("job", {}).get("model", ""), run.checkpoints / "*"]
        return read_token_range(outcome, segment, start, limit, find_tokenizer(map(Path, folders)))

    def row_rewards(
        self, job: JobRecord, rollout_filter: RolloutFilter, order: RowOrder, limit: int, after: str | None
    ) -> tuple[list[RowRewards], bool]:
        """Return a page of row rewards, and whether more rows follow. Raises the same errors as `summaries`."""
        with self._open_index(job) as index:
            found = rows_after(compute_row_rewards(index, index.check_filter(rollout_filter), order), after)
        return found[:limit], len(found) > limit

    def filters(self, job: JobRecord) -> tuple[list[RolloutFile], list[str], list[str]]:
        """Return the values to filter by: rollout files (oldest first), tools called, and errors that occurred.

        Raises:
            NotIndexed: Some rollouts must be indexed first, or were rewritten during the request.
        """
        with self._open_index(job) as index:
            return index.files(), shorten_names(sorted(index.list_values("tools"))), sorted(index.list_values("errors"))

    def metrics(self, job: JobRecord, limit: int, after: int | None) -> tuple[list[tuple[int, dict[str, float]]], bool]:
        """Return a page of step metrics, newest first, and whether more steps follow.

        Raises:
            UnknownCursor: The step `after` has no metrics.
        """
        steps = {int(metrics["step"]): metrics for metrics in reversed(RunFolder(self._runs / job.id).metrics())}
        if after is not None and after not in steps:
            raise UnknownCursor(f"there are no metrics for step {after}")
        found = [(step, metrics) for step, metrics in steps.items() if after is None or step < after]
        return found[:limit], len(found) > limit

    def settings(self, job: JobRecord) -> dict[str, Any]:
        """Return the job's settings and plan as recorded when the job started; empty if it has not started."""
        found = _OwnerRunFolder(self._runs / job.id, _names(job, self._runs)).job()
        return {name: found[name] for name in ("job", "plan") if name in found}

    def report(self, job: JobRecord) -> Path | None:
        """Return the path of the report for the job's owner; None if the job has not started.

        An outdated report is updated first.

        Raises:
            NotIndexed: Another request is writing the first report.
        """
        run = _OwnerRunFolder(self._runs / job.id, _names(job, self._runs))
        with self._open_state(job.id) as kept, _try_lock(kept.reporting) as is_locked:
            with suppress(FileNotFoundError):
                written, changed = run.report_file.stat().st_mtime, (run.path / "events.jsonl").stat().st_mtime
                if not is_locked or written > changed or written > time.time() - FRESH_S:
                    return run.report_file
            if not (run.path / "events.jsonl").exists():
                return None
            if not is_locked:
                raise NotIndexed("the report is being written")
            return self._write(run)

    @contextmanager
    def _open_index(self, job: JobRecord) -> Iterator[RolloutIndex]:
        """Context manager that yields the up-to-date index of a job's rollouts."""
        with self._open_state(job.id) as kept:
            try:
                with _try_lock(kept.indexing) as is_locked:
                    if not (kept.index.catch_up(INDEX_S) if is_locked else kept.index.is_complete()):
                        raise NotIndexed("the rollouts are being indexed")
                yield kept.index
            except RewrittenFile as error:
                raise NotIndexed(error.public_message) from error
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                raise NotIndexed("the index is being written") from error

    def _list_page(
        self, index: RolloutIndex, rollout_filter: RolloutFilter, order: Order, limit: int, after: str | None
    ) -> RolloutPage:
        rollout_filter = index.check_filter(rollout_filter)
        if rollout_filter.text is not None:
            return self._search(
                index, index.iter_rollouts(rollout_filter, order, after=after), rollout_filter.text, limit
            )
        found = index.page(rollout_filter, order, limit + 1, after)
        return RolloutPage(found[:limit], len(found) > limit, found[:limit][-1].id if found else None)

    def _search(self, index: RolloutIndex, among: Iterator[IndexedRollout], text: str, limit: int) -> RolloutPage:
        """Return a page of rollouts that contain `text`. The page is shorter if the search takes too long."""
        found: list[IndexedRollout] = []
        deadline = time.monotonic() + self._search_s
        for one, has_text in index.search_text(among, text):
            found += [one] * has_text
            if len(found) > limit:
                return RolloutPage(found[:limit], True, found[:limit][-1].id)
            if time.monotonic() > deadline:
                return RolloutPage(found, True, one.id)
        return RolloutPage(found, False, found[-1].id if found else None)

    @contextmanager
    def _open_state(self, job_id: str) -> Iterator[_JobState]:
        """Context manager that yields a job's state, which all requests for the job share.

        If too many states are open, the least recently used states without requests are closed.
        """
        with self._keeping:
            kept = self._kept.pop(job_id, None) or _JobState(self._index_of(self._runs / job_id))
            self._kept[job_id] = kept
            kept.num_requests += 1
            idle = [id for id, one in self._kept.items() if not one.num_requests]
            for id in idle[: max(0, len(self._kept) - self._max_kept)]:
                self._kept.pop(id).index.close()
        try:
            yield kept
        finally:
            with self._keeping:
                kept.num_requests -= 1


@contextmanager
def _try_lock(lock: threading.Lock) -> Iterator[bool]:
    """Context manager that tries to acquire a lock without waiting, and yields whether it succeeded."""
    is_locked = lock.acquire(blocking=False)
    try:
        yield is_locked
    finally:
        if is_locked:
            lock.release()


def _read_rollout(index: RolloutIndex, id: str) -> tuple[IndexedRollout, GroupRequest, Rollout | DiscardedRollout]:
    for whole in index.read_rollouts([index.find(id)]):
        return whole
    raise UnknownRollout(f"the file of the rollout {id!r} was removed")


def _public_json(outcome: Rollout | DiscardedRollout) -> dict[str, Any]:
    """Return the rollout as JSON, without messages that may come from endpoints in the server's network."""
    if isinstance(outcome, DiscardedRollout):
        return outcome_to_json(replace(outcome, message="", endpoint=""))
    return outcome_to_json(replace(outcome, grade=replace(outcome.grade, held_out_error="")))


def _without_nan(value: dict[str, Any]) -> dict[str, Any]:
    """Return the value as plain JSON, with null for numbers that are not finite."""
    plain: dict[str, Any] = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
    return plain


def _names(job: JobRecord, runs: Path) -> dict[str, str]:
    """Return a mapping from the paths of a job to the names that the job's owner sees instead."""
    names = {str(runs / job.id): "the run", str(runs.parent): "the server's folder"}
    used = RunFolder(runs / job.id).job().get("job", {})
    files = {used.get(name): getattr(job, name) for name in FILES}
    model = {used.get("model"): job.model} if str(used.get("model")).startswith("/") else {}
    return names | {path: name for path, name in (files | model).items() if path and name}


class _OwnerRunFolder(RunFolder):
    """Run folder of a job, without the data that the job's owner must not see."""

    def __init__(self, path: Path, names: Mapping[str, str]) -> None:
        super().__init__(path)
        self._names = names

    @property
    def report_file(self) -> Path:
        return self.path / "report.owner.html"

    def job(self) -> dict[str, Any]:
        hidden: dict[str, Any] = replace_substrings(super().job(), self._names)
        return hidden

    def events(self) -> list[RunEvent]:
        return list(self._hide_events(super().events()))

    def _hide_events(self, events: list[RunEvent]) -> Iterator[RunEvent]:
        for event in events:
            message, data = replace_substrings([*public_event_fields(event)], self._names)
            yield replace(event, message=message, data=data)

    def read_groups(self, name: str) -> list[Group]:
        return [_remove_causes(group) for group in super().read_groups(name)]


def _remove_causes(group: Group) -> Group:
    rollouts = tuple(replace(r, grade=replace(r.grade, held_out_error="")) for r in group.rollouts)
    return replace(group, rollouts=rollouts, discarded=tuple(replace(d, message="") for d in group.discarded))
