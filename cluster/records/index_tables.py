"""The tables of the index of rollouts: what they hold of each one, enough to filter, order and list it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rft.cluster.records.wanted import DISCARDED, listed, text
from agent_rft.rows.rollout_files import Place, read_lines
from agent_rft.rows.rollout_json import outcome_from_json
from agent_rft.types import Discarded, Group, Rollout

FORMAT = 2
"""The format of the tables. An index of another one is rebuilt."""
ANSWER_CHARS = 120
"""Characters of an answer that are listed."""
NAME_CHARS, MAX_NAMES = 200, 100
"""Characters of a tool's name, and names, that are listed."""
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
SELECTED = (
    "f.name, r.number, r.frame, r.start, r.length, r.group_start, r.group_length, f.step, r.trace_id, r.row_id, "
    "r.sample, r.grade, r.reward, r.finish, r.tools, r.errors, r.num_calls, r.num_sampled, r.wall_s, r.answer"
)
"""What `found_in` reads, of files as f and rollouts as r."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A rollout in a list. Of a discarded one, numbers are None and `errors` has the reason.

    Attributes:
        step: That of its file; None for tests.
        tools: Tools that it called, each once.
        errors: Errors of its calls, each once.
        answer: The beginning of its answer.
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
class Found:
    """A rollout in the index. Its `id` is that of a page's end, as long as its file is not written again."""

    name: str
    number: int
    place: Place
    group: Place
    summary: Summary

    @property
    def id(self) -> str:
        return f"{self.name}.{self.number}"


def shown(names: list[str]) -> list[str]:
    """Names that models made up may be long and many: those that a list shows."""
    return [name[:NAME_CHARS] for name in names[:MAX_NAMES]]


def found_in(row: tuple[Any, ...]) -> Found:
    """The rollout of a row of SELECTED."""
    name, number, frame, start, length, group_start, group_length, step, trace_id, row_id, sample, *values = row
    grade, reward, finish, tools, errors, num_calls, num_sampled, wall_s, answer = values
    called, failed = shown(tools.split("\n")[1:-1]), errors.split("\n")[1:-1]
    cost = (num_calls, num_sampled, wall_s)
    summary = Summary(step, trace_id, row_id, sample, grade, reward, finish, called, failed, *cost, answer)
    return Found(name, number, Place(frame, start, length), Place(frame, group_start, group_length), summary)


def rows_of(groups: Sequence[Group], places: Sequence[Sequence[Place]]) -> Iterator[tuple[Any, ...]]:
    """The rows of groups whose lines were written at these places, without their file and number."""
    for group, (head, *rest) in zip(groups, places, strict=True):
        outcomes: tuple[Rollout | Discarded, ...] = (*group.rollouts, *group.discarded)
        for outcome, place in zip(outcomes, rest, strict=True):
            yield _row(outcome, head, place)


def rows_in(path: Path) -> Iterator[tuple[Any, ...]]:
    """The rows of a file.

    Raises:
        DamagedFile: After the last whole line.
        UserError: A newer version wrote the file.
    """
    head: Place | None = None
    for place, line in read_lines(path):
        if line["kind"] == "group":
            head = place
        elif head is not None:
            yield _row(outcome_from_json(line), head, place)


def _row(outcome: Rollout | Discarded, head: Place, place: Place) -> tuple[Any, ...]:
    at = (place.frame, place.start, place.length, head.start, head.length)
    ids = (text(outcome.trace_id), text(outcome.row_id), outcome.sample)
    if isinstance(outcome, Discarded):
        return (*at, *ids, None, None, DISCARDED, "", listed([outcome.reason]), None, None, None, "")
    tools = listed(call.name for call in outcome.calls)
    errors = listed(result.error for result in outcome.results if result.error)
    ended = (outcome.grade.value, outcome.reward, outcome.finish)  # SQLite stores NaN as NULL
    cost = (len(outcome.calls), outcome.num_sampled, outcome.wall_s)
    return (*at, *ids, *ended, tools, errors, *cost, text(outcome.answer[:ANSWER_CHARS]))
