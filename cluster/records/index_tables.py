"""Tables of the rollout index, with the columns for filtering, sorting and listing rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rft.cluster.records.rollout_filter import DISCARDED, join_names, replace_surrogates
from agent_rft.rows.rollout_files import LinePosition, read_lines
from agent_rft.rows.rollout_json import outcome_from_json
from agent_rft.types import DiscardedRollout, Group, Rollout

FORMAT = 2
"""Version of the tables. An index with another version is rebuilt."""
ANSWER_CHARS = 120
"""Maximum number of characters of an answer in a list of rollouts."""
NAME_CHARS, MAX_NAMES = 200, 100
"""Maximum length of a tool name, and maximum number of tool names, in a list of rollouts."""
TABLES = (
    "DROP TABLE IF EXISTS rollouts",
    "DROP TABLE IF EXISTS files",
    """CREATE TABLE files (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, step INTEGER, mtime_ns INTEGER, size INTEGER,
        rollouts INTEGER, problem TEXT
    )""",
    """CREATE TABLE rollouts (
        file INTEGER, number INTEGER, frame INTEGER, start INTEGER, length INTEGER, group_start INTEGER,
        group_length INTEGER, trace_id TEXT, row_id TEXT, sample INTEGER, grade REAL, reward REAL, finish TEXT,
        tools TEXT, errors TEXT, num_calls INTEGER, num_sampled INTEGER, wall_s REAL, answer TEXT,
        PRIMARY KEY (file, number)
    ) WITHOUT ROWID""",
    f"PRAGMA user_version = {FORMAT}",
)
INSERT = f"INSERT OR REPLACE INTO rollouts VALUES ({', '.join('?' * 19)})"
COLUMNS = (
    "f.name, r.number, r.frame, r.start, r.length, r.group_start, r.group_length, f.step, r.trace_id, r.row_id, "
    "r.sample, r.grade, r.reward, r.finish, r.tools, r.errors, r.num_calls, r.num_sampled, r.wall_s, r.answer"
)
"""SQL columns that `to_indexed_rollout` reads; `f` is an alias of the table `files`, and `r` of `rollouts`."""


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """Summary of a rollout, for lists. If the rollout was discarded, numbers are None and `errors` has the reason.

    Attributes:
        step: Step of the rollout's file; None for tests.
        tools: Called tools, without duplicates.
        errors: Errors of calls, without duplicates.
        answer: Beginning of the answer.
    """

    step: int | None
    trace_id: str
    row_id: str
    sample: int
    grade: float | None
    reward: float | None
    finish: str
    tools: list[str]
    errors: list[str]
    num_calls: int | None
    num_sampled: int | None
    wall_s: float | None
    answer: str


@dataclass(frozen=True, slots=True)
class IndexedRollout:
    """Rollout in the index.

    `name` is the name of the rollout file. `place` is the line of the rollout, and `group_position` is the line of its
    group. `id` is valid until the file is rewritten.
    """

    name: str
    number: int
    place: LinePosition
    group_position: LinePosition
    summary: RolloutSummary

    @property
    def id(self) -> str:
        return f"{self.name}.{self.number}"


def shorten_names(names: list[str]) -> list[str]:
    """Return the names, limited in number and length: a model may invent many long tool names."""
    return [name[:NAME_CHARS] for name in names[:MAX_NAMES]]


def to_indexed_rollout(row: tuple[Any, ...]) -> IndexedRollout:
    """Convert a database row with COLUMNS to a rollout."""
    name, number, frame, start, length, group_start, group_length, step, trace_id, row_id, sample, *values = row
    grade, reward, finish, tools, errors, num_calls, num_sampled, wall_s, answer = values
    called, failed = shorten_names(tools.split("\n")[1:-1]), errors.split("\n")[1:-1]
    cost = (num_calls, num_sampled, wall_s)
    summary = RolloutSummary(step, trace_id, row_id, sample, grade, reward, finish, called, failed, *cost, answer)
    return IndexedRollout(
        name, number, LinePosition(frame, start, length), LinePosition(frame, group_start, group_length), summary
    )


def make_index_rows(groups: Sequence[Group], places: Sequence[Sequence[LinePosition]]) -> Iterator[tuple[Any, ...]]:
    """Yield a database row for each rollout of the groups, without the columns `file` and `number`.

    `places` has one entry per group: the positions of the group's line and of its rollouts' lines in the rollout file.
    """
    for group, (head, *rest) in zip(groups, places, strict=True):
        outcomes: tuple[Rollout | DiscardedRollout, ...] = (*group.rollouts, *group.discarded)
        for outcome, place in zip(outcomes, rest, strict=True):
            yield _make_row(outcome, head, place)


def read_index_rows(path: Path) -> Iterator[tuple[Any, ...]]:
    """Yield a database row for each rollout in a rollout file, as `make_index_rows` does.

    Raises:
        DamagedFile: The file is damaged. The rows of all complete lines are yielded first.
        UserError: A newer version wrote the file.
    """
    head: LinePosition | None = None
    for place, line in read_lines(path):
        if line["kind"] == "group":
            head = place
        elif head is not None:
            yield _make_row(outcome_from_json(line), head, place)


def _make_row(outcome: Rollout | DiscardedRollout, head: LinePosition, place: LinePosition) -> tuple[Any, ...]:
    at = (place.frame, place.start, place.length, head.start, head.length)
    ids = (replace_surrogates(outcome.trace_id), replace_surrogates(outcome.row_id), outcome.sample)
    if isinstance(outcome, DiscardedRollout):
        return (*at, *ids, None, None, DISCARDED, "", join_names([outcome.reason]), None, None, None, "")
    tools = join_names(call.name for call in outcome.calls)
    errors = join_names(result.error for result in outcome.results if result.error)
    ended = (outcome.grade.value, outcome.reward, outcome.finish)  # SQLite stores NaN as NULL
    cost = (len(outcome.calls), outcome.num_sampled, outcome.wall_s)
    return (*at, *ids, *ended, tools, errors, *cost, replace_surrogates(outcome.answer[:ANSWER_CHARS]))
