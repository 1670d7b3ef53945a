"""Index of a run's rollouts: `rollouts.sqlite`, next to the folder of the rollout files.

All data in the index comes from the rollout files, so the index can be deleted at any time. It contains the size and
modification time of each indexed file. A reader first updates the index: it adds new and replaced files, and drops
removed files. Killed processes and failed writes therefore leave nothing to repair. If the index cannot be written, for
example in a read-only folder, the reader creates a temporary index.
"""

from __future__ import annotations

import math
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from agent_rft.cluster.records.index_tables import (
    COLUMNS,
    FORMAT,
    INSERT,
    TABLES,
    IndexedRollout,
    make_index_rows,
    read_index_rows,
    to_indexed_rollout,
)
from agent_rft.cluster.records.rollout_filter import RolloutFilter, replace_surrogates
from agent_rft.cluster.records.text_search import TextSearch
from agent_rft.errors import UserError
from agent_rft.rows.ownership import current_folder
from agent_rft.rows.rollout_files import ROLLOUTS_SUFFIX, LinePosition, LineReader, parse_request
from agent_rft.rows.rollout_json import outcome_from_json
from agent_rft.types import DiscardedRollout, Group, GroupRequest, Rollout

MAX_LISTED_VALUES = 50
"""Maximum number of values that a message lists."""
BUSY_S = 5.0
BATCH = 2_000
"""Number of rows that are written or read at once. The number is small so that other processes wait only briefly."""
CORRUPT_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
PAUSE_S = 0.1
"""First pause while another reader indexes a file. Each later pause is twice as long as the one before."""
JOIN_SQL = "FROM rollouts r JOIN files f ON f.id = r.file WHERE"
SELECT_SQL = f"SELECT {COLUMNS} {JOIN_SQL}"
Order = Literal["oldest", "newest", "best", "worst"]


class UnknownRollout(UserError):
    """No rollout has this id; the rollout may have been removed."""


class UnknownValue(UserError):
    """A requested value does not exist. `field` is the parameter's name, such as `tool`."""

    def __init__(self, message: str, field: str = "", **details: Any) -> None:
        super().__init__(message, field=field, **details)
        self.field = field


@dataclass(frozen=True, slots=True)
class RolloutFile:
    """Rollout file in the index. `problem` describes why the file cannot be read to its end, and is empty if it can."""

    name: str
    step: int | None
    mtime_ns: int
    num_bytes: int
    num_rollouts: int
    problem: str


class RolloutIndex:
    """The index of one run folder. Reading methods do not update the index: call `catch_up` first."""

    def __init__(self, run: Path, busy_s: float = BUSY_S) -> None:
        self._run = run
        self._busy_s = busy_s
        self._temporary: sqlite3.Connection | None = None

    @property
    def _folder(self) -> Path:
        return current_folder(self._run) / "rollouts"

    @property
    def _path(self) -> Path:
        # Not the link in the run folder: a reader that makes the index again would replace the link with a file, and no
        # later process could become the owner of the folder.
        return current_folder(self._run) / "rollouts.sqlite"

    def close(self) -> None:
        """Delete the temporary index, if there is one."""
        if self._temporary is not None:
            self._temporary.close()

    # -- writing -------------------------------------------------------------------------------------------------------

    def add_file(self, name: str, groups: Sequence[Group], places: Sequence[Sequence[LinePosition]]) -> None:
        """Add a rollout file that was just written. Errors are ignored, because the next reader adds the file.

        `places` has one entry per group: the positions of the group's line and of its rollouts' lines in the file.
        """
        with suppress(sqlite3.Error, OSError):
            stat = self._rollout_path(name).stat()
            rows = list(make_index_rows(groups, places))
            with self.connect() as db, _transaction(db):
                file = self._begin_file(db, name)
                db.executemany(INSERT, ((file, number, *row) for number, row in enumerate(rows)))
                self._end_file(db, file, stat, len(rows), "")

    def catch_up(self, seconds: float = math.inf) -> bool:
        """Update the index from the rollout files for about `seconds`; return whether the index is up to date.

        If it returns False, call it again. Each call reads at least one complete file. Several readers may call this
        method concurrently.
        """
        deadline = time.monotonic() + seconds
        try:
            return self._catch_up(deadline)
        except sqlite3.DatabaseError as error:
            if self._temporary is not None:
                raise
            if is_busy(error) and seconds < math.inf:
                return False
            if error.sqlite_errorcode in CORRUPT_CODES:
                self._path.unlink(missing_ok=True)
            else:
                self._temporary = _connect("", self._busy_s)
            return self._catch_up(deadline)

    def is_complete(self) -> bool:
        """Return whether the index matches the files, so that `catch_up` has nothing to do."""
        try:
            with self.connect() as db:
                return not any(self._find_changes(db))
        except sqlite3.Error:
            return False

    def _catch_up(self, deadline: float) -> bool:
        pause = PAUSE_S
        with self.connect() as db:
            while any(difference := self._find_changes(db)):
                (gone, changed), all_read = difference, True
                with _transaction(db):
                    self._delete_files(db, *gone)
                for name, stat in changed:
                    with suppress(FileNotFoundError):  # the file was removed
                        all_read &= self._index_file(db, name, stat)
                    if time.monotonic() > deadline:
                        return not any(self._find_changes(db))
                if not all_read:
                    time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
                    pause *= 2
        return True

    def _find_changes(self, db: sqlite3.Connection) -> tuple[set[str], list[tuple[str, os.stat_result]]]:
        """Return the removed files, and the new or changed files with the oldest first."""
        on_disk = _stat_files(self._folder)
        known = {f.name: (f.mtime_ns, f.num_bytes) for f in _list_files(db)}
        changed = [(name, s) for name, s in on_disk.items() if known.get(name) != (s.st_mtime_ns, s.st_size)]
        return known.keys() - on_disk.keys(), sorted(changed, key=lambda file: (file[1].st_mtime_ns, file[0]))

    def _index_file(self, db: sqlite3.Connection, name: str, stat: os.stat_result) -> bool:
        """Index the readable part of a file. Return False if another reader starts to index it concurrently."""
        with _transaction(db):
            same = "SELECT 1 FROM files WHERE name = ? AND mtime_ns = ? AND size = ?"
            if db.execute(same, [name, stat.st_mtime_ns, stat.st_size]).fetchone():
                return True  # another reader has indexed it
            file = self._begin_file(db, name)
        number, problem, rows = 0, "", read_index_rows(self._rollout_path(name))
        while not problem:
            batch: list[tuple[Any, ...]] = []
            try:
                batch.extend(islice(rows, BATCH))
            except UserError as error:
                problem = error.message
            with _transaction(db):
                if not db.execute("SELECT 1 FROM files WHERE id = ?", [file]).fetchone():
                    return False
                db.executemany(INSERT, ((file, number + i, *row) for i, row in enumerate(batch)))
            number += len(batch)
            if not batch:
                break
        with _transaction(db):
            return self._end_file(db, file, stat, number, problem)

    def _begin_file(self, db: sqlite3.Connection, name: str) -> int:
        """Replace a file's entry and rows with an empty entry, and return its id. `_end_file` completes the entry."""
        self._delete_files(db, name)
        counted = re.match(r"(?:step|validation|zero-variance)-(\d+)", name)
        step = int(counted[1]) if counted else None
        added = db.execute("INSERT INTO files VALUES (NULL, ?, ?, 0, 0, 0, '')", [name, step])
        return int(added.lastrowid or 0)

    def _end_file(self, db: sqlite3.Connection, file: int, stat: os.stat_result, count: int, problem: str) -> bool:
        values = [stat.st_mtime_ns, stat.st_size, count, problem, file]
        ended = db.execute("UPDATE files SET mtime_ns = ?, size = ?, rollouts = ?, problem = ? WHERE id = ?", values)
        return ended.rowcount > 0

    def _delete_files(self, db: sqlite3.Connection, *names: str) -> None:
        """Remove these files and their rollouts from the index."""
        if db.executemany("DELETE FROM files WHERE name = ?", [(name,) for name in names]).rowcount > 0:
            db.execute("DELETE FROM rollouts WHERE file NOT IN (SELECT id FROM files)")

    # -- reading -------------------------------------------------------------------------------------------------------

    def files(self) -> list[RolloutFile]:
        """Return all files, oldest first."""
        with self.connect() as db:
            return _list_files(db)

    def list_values(self, column: Literal["tools", "errors"]) -> list[str]:
        """Return the names of all tools that were called, or of all errors that occurred, in alphabetical order."""
        with self.connect() as db:
            lists = db.execute(f"SELECT DISTINCT {column} FROM rollouts").fetchall()
        return sorted({name for (names,) in lists for name in names.split("\n") if name})

    def check_filter(self, rollout_filter: RolloutFilter) -> RolloutFilter:
        """Return the filter with the full file name: users may write `step-12` instead of `step-000012`.

        Raises:
            UnknownValue: There are rollouts, but none with this file, step, tool or error.
        """
        files, name = self.files(), rollout_filter.name
        if name is not None and (counted := re.fullmatch(r"(step|validation)-(\d{1,9})", name)):
            name = f"{counted[1]}-{int(counted[2]):06d}"
        checks: list[tuple[str, str | int | None, Callable[[], Iterable[str | int]]]] = [
            ("file", name, lambda: {f.name for f in files}),
            ("step", rollout_filter.step, lambda: {f.step for f in files if f.step is not None}),
            ("tool", rollout_filter.tool, lambda: self.list_values("tools")),
            ("error", rollout_filter.error, lambda: self.list_values("errors")),
        ]
        for field, value, values in checks if files else ():
            if value is not None and value not in (
                known := sorted(values(), key=lambda known: f"{known:09}" if isinstance(known, int) else known)
            ):
                shown = ", ".join(map(str, known[:MAX_LISTED_VALUES])) + (
                    ", ..." if len(known) > MAX_LISTED_VALUES else ""
                )
                raise UnknownValue(f"no rollouts have the {field} {value!r}; available: {shown or 'none'}", field)
        return replace(rollout_filter, name=name)

    def page(self, filters: RolloutFilter, order: Order, limit: int, after: str | None = None) -> list[IndexedRollout]:
        """Return the first `limit` rollouts, or the next `limit` after the rollout with the id `after`.

        When ordered by age, only the files are sorted; the rollouts of each file keep their order in the file. When
        ordered by grade, rollouts without a grade are omitted.

        Raises:
            UnknownRollout: The rollout `after` does not exist.
        """
        with self.connect() as db:
            if order in ("best", "worst"):
                return _page_by_grade(db, filters, order == "best", limit, after)
            return _page_by_age(db, filters, order == "newest", limit, after)

    def iter_rollouts(
        self, rollout_filter: RolloutFilter, order: Order, limit: int | None = None, after: str | None = None
    ) -> Iterator[IndexedRollout]:
        """Yield all rollouts, or the first `limit`, after the rollout with the id `after`.

        The rollouts are read in pages, so that writers wait only briefly.

        Raises:
            UnknownRollout: The rollout `after` does not exist.
        """
        left = math.inf if limit is None else limit
        while left > 0:
            found = self.page(rollout_filter, order, int(min(BATCH, left)), after)
            yield from found
            if not found:
                return
            after, left = found[-1].id, left - len(found)

    def search_text(self, found: Iterable[IndexedRollout], query: str) -> Iterator[tuple[IndexedRollout, bool]]:
        """Yield each rollout with a bool: whether its prompt, turns, answer or reason contains `query`.

        Rollouts whose file was removed are omitted. See `text_search`.
        """
        with closing(TextSearch(query)) as search:
            for one in found:
                with suppress(FileNotFoundError):
                    yield one, search.matches(self._rollout_path(one.name), one)

    def find(self, id: str) -> IndexedRollout:
        """Return the rollout with this id.

        Raises:
            UnknownRollout: No rollout has this id.
        """
        with self.connect() as db:
            name, number, *_ = _find_cursor(db, id)
            return to_indexed_rollout(
                db.execute(f"{SELECT_SQL} f.name = ? AND r.number = ?", [name, number]).fetchone()
            )

    def read_rollouts(
        self, found: Iterable[IndexedRollout]
    ) -> Iterator[tuple[IndexedRollout, GroupRequest, Rollout | DiscardedRollout]]:
        """Yield (entry, request, full rollout) for each index entry; omit rollouts whose file was removed."""
        request: tuple[tuple[str, LinePosition], GroupRequest] | None = None
        with closing(LineReader()) as reader:
            for one in found:
                path = self._rollout_path(one.name)
                with suppress(FileNotFoundError):
                    if request is None or request[0] != (one.name, one.group_position):
                        request = (
                            (one.name, one.group_position),
                            parse_request(reader.read(path, one.group_position))[0],
                        )
                    yield one, request[1], outcome_from_json(reader.read(path, one.place))

    # -- the database --------------------------------------------------------------------------------------------------

    def _rollout_path(self, name: str) -> Path:
        return self._folder / (name + ROLLOUTS_SUFFIX)

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """Context manager with a connection to the database."""
        if self._temporary is not None:
            yield self._temporary
            return
        sampled = self._folder.is_dir()  # never creates a file in a folder that may not be a run
        with closing(_connect(self._path if sampled else "", self._busy_s)) as db:
            yield db


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether the error occurred because another process has locked the database."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _connect(path: Path | str, busy_s: float) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)
    try:
        if _read_format(db) != FORMAT:
            with _transaction(db):
                if _read_format(db) != FORMAT:  # another process may have made the tables
                    for statement in TABLES:
                        db.execute(statement)
    except BaseException:
        db.close()
        raise
    return db


def _read_format(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _stat_files(folder: Path) -> dict[str, os.stat_result]:
    found = {}
    for path in folder.glob("*" + ROLLOUTS_SUFFIX):
        with suppress(FileNotFoundError):
            found[path.name.removesuffix(ROLLOUTS_SUFFIX)] = path.stat()
    return found


def _list_files(db: sqlite3.Connection) -> list[RolloutFile]:
    query = "SELECT name, step, mtime_ns, size, rollouts, problem FROM files ORDER BY mtime_ns, name"
    return [RolloutFile(*row) for row in db.execute(query)]


def _page_by_age(
    db: sqlite3.Connection, rollout_filter: RolloutFilter, newest: bool, limit: int, after: str | None
) -> list[IndexedRollout]:
    files = [
        f.name
        for f in _list_files(db)
        if rollout_filter.step in (None, f.step) and rollout_filter.name in (None, f.name)
    ]
    if newest:
        files.reverse()
    last = -1
    if after is not None:
        name, last, *_ = _find_cursor(db, after)
        if name not in files:
            raise UnknownRollout(f"the rollout {after!r} is not in this list; start again from the first page")
        files = files[files.index(name) :]
    found: list[IndexedRollout] = []
    for name in files:
        condition, values = replace(rollout_filter, name=name).to_sql()
        query = f"{SELECT_SQL} {condition} AND r.number > ? ORDER BY r.number LIMIT ?"
        found += map(to_indexed_rollout, db.execute(query, [*values, last, limit - len(found)]))
        if len(found) == limit:
            break
        last = -1
    return found


def _page_by_grade(
    db: sqlite3.Connection, rollout_filter: RolloutFilter, best: bool, limit: int, after: str | None
) -> list[IndexedRollout]:
    condition, values = rollout_filter.to_sql()
    beyond, direction = ("<", "DESC") if best else (">", "ASC")
    if after is not None:
        _, number, file, grade = _find_cursor(db, after)
        condition += f" AND (r.grade {beyond} ? OR (r.grade = ? AND (r.file, r.number) > (?, ?)))"
        values += [grade, grade, file, number]
    order = f"r.grade {direction}, r.file, r.number"
    query = f"{SELECT_SQL} {condition} AND r.grade IS NOT NULL ORDER BY {order} LIMIT ?"
    return [to_indexed_rollout(row) for row in db.execute(query, [*values, limit])]


def _find_cursor(db: sqlite3.Connection, id: str) -> tuple[str, int, int, float | None]:
    """Return the file name, number, file id and grade of a rollout.

    Raises:
        UnknownRollout: No rollout has this id.
    """
    name, _, number = id.rpartition(".")
    query = f"SELECT f.name, r.number, r.file, r.grade {JOIN_SQL} f.name = ? AND CAST(r.number AS TEXT) = ?"
    row = db.execute(query, [replace_surrogates(name), replace_surrogates(number)]).fetchone()
    if row is None:
        raise UnknownRollout(f"the rollout {id!r} does not exist or was removed; start again from the first page")
    found: tuple[str, int, int, float | None] = row
    return found
