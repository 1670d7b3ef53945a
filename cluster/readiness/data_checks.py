"""Data checks of a readiness check: contradictory rows, duplicates, near duplicates, and rows in several files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rapidfuzz import fuzz, process, utils

from agent_rft.types import Task

NEAR = 95.0
"""Minimum rapidfuzz ratio of near-duplicate questions: one letter in twenty may differ."""
COMPARED_ROWS = 2_000
"""Maximum number of rows with the same reference that are compared. Comparing all their pairs takes about a second."""
MAX_PAIRS = 200
"""Maximum number of near-duplicate pairs in the result."""
MESSAGES, NOT_THE_REFERENCE = "messages", ("messages", "tools", "id", "row_id", "uuid")
"""Row fields that are not part of the reference. All other fields are part of it, because graders may use them."""
NO_REFERENCE = "{}"
"""Empty reference as JSON. Rows with an empty reference are never near duplicates: their answers may differ."""


@dataclass(frozen=True, slots=True)
class DataFinding:
    """Problems in the rows of one file of a job, as groups of line numbers.

    Attributes:
        file: Job field that names the file.
        distinct: Number of different questions.
        contradictory: Rows with the same question but different references.
        duplicates: Rows with the same question and the same reference.
        near_duplicates: Pairs of rows with the same reference and nearly the same question; at most MAX_PAIRS pairs.
        shared: Overlap with the job's other files, by job field. The overlap is the number of rows in the other file
            whose question also occurs in this file. Files without overlap are left out.
    """

    file: str
    rows: int
    distinct: int
    contradictory: tuple[tuple[int, ...], ...] = ()
    duplicates: tuple[tuple[int, ...], ...] = ()
    near_duplicates: tuple[tuple[int, int], ...] = ()
    shared: dict[str, int] | None = None

    @property
    def contradictory_share(self) -> float:
        return sum(map(len, self.contradictory)) / max(1, self.rows)


def check_rows(file: str, tasks: Sequence[Task], others: Mapping[str, Sequence[Task]]) -> DataFinding:
    """Find problems in `tasks`, the rows of one file of a job.

    `file` is the job field that names the file. `others` has the rows of the job's other files, by job field.
    """
    same_question: dict[str, dict[str, list[int]]] = {}
    for task in tasks:
        references = same_question.setdefault(_question(task), {})
        references.setdefault(_reference(task), []).append(task.line)
    shared = {name: sum(_question(task) in same_question for task in rows) for name, rows in others.items()}
    return DataFinding(
        file=file,
        rows=len(tasks),
        distinct=len(same_question),
        contradictory=tuple(
            tuple(sorted(line for lines in references.values() for line in lines))
            for references in same_question.values()
            if len(references) > 1
        ),
        duplicates=tuple(tuple(lines) for refs in same_question.values() for lines in refs.values() if len(lines) > 1),
        near_duplicates=tuple(_near_duplicates(tasks)),
        shared={name: count for name, count in shared.items() if count},
    )


def _question(task: Task) -> str:
    return json.dumps(task.messages, sort_keys=True)


def _reference(task: Task) -> str:
    return json.dumps({k: v for k, v in task.item.items() if k not in NOT_THE_REFERENCE}, sort_keys=True)


def _near_duplicates(tasks: Sequence[Task]) -> list[tuple[int, int]]:
    """Return pairs of lines with equal references and nearly equal questions. A row may be in several pairs."""
    by_reference: dict[str, dict[str, int]] = {}
    for task in tasks:
        text = str(task.messages[-1].get("content") or "")  # instructions shared by all rows would hide differences
        by_reference.setdefault(_reference(task), {}).setdefault(text, task.line)
    pairs = []
    for reference, questions in by_reference.items():
        texts = list(questions)[:COMPARED_ROWS]
        if len(texts) < 2 or reference == NO_REFERENCE:
            continue
        scores = process.cdist(texts, texts, scorer=fuzz.ratio, processor=utils.default_process, score_cutoff=NEAR)
        lines = [questions[text] for text in texts]
        pairs += [(lines[i], lines[j]) for i, j in zip(*scores.nonzero(), strict=True) if i < j]
    return sorted(pairs)[:MAX_PAIRS]
