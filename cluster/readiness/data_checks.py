"""Rows that contradict, repeat or leak: the same question with other references, near duplicates, shared files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rapidfuzz import fuzz, process, utils

from agent_rft.types import Task

NEAR = 95.0
"""rapidfuzz's ratio of two questions that count as nearly the same: one letter in twenty may differ."""
COMPARED_ROWS = 2_000
"""Rows of one reference that are compared with each other: 2 million pairs, a second."""
MAX_PAIRS = 200
"""Pairs that are kept."""
MESSAGES, NOT_THE_REFERENCE = "messages", ("messages", "tools", "id", "row_id", "uuid")
"""Everything else of a row may be read by its grader, so it is the row's reference."""
NO_REFERENCE = "{}"
"""Without references nothing says that two questions mean the same."""


@dataclass(frozen=True, slots=True)
class DataFinding:
    """Lines of a job's file, in groups, and how many rows of the job's other files are in it.

    `contradictory`: the same question, other references. `duplicates`: the same in both. `near_duplicates`: pairs with
    the same reference and nearly the same question, at most MAX_PAIRS. `distinct` counts the different questions.
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


def data_finding(file: str, tasks: Sequence[Task], others: Mapping[str, Sequence[Task]]) -> DataFinding:
    """`file`: the job's field of the rows; `others`: the rows of the other files by the job's field."""
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
        near_duplicates=tuple(_near(tasks)),
        shared={name: count for name, count in shared.items() if count},
    )


def _question(task: Task) -> str:
    return json.dumps(task.messages, sort_keys=True)


def _reference(task: Task) -> str:
    return json.dumps({k: v for k, v in task.item.items() if k not in NOT_THE_REFERENCE}, sort_keys=True)


def _near(tasks: Sequence[Task]) -> list[tuple[int, int]]:
    """Pairs of lines whose references are equal and whose questions are nearly so; a row may be in several pairs."""
    by_reference: dict[str, dict[str, int]] = {}
    for task in tasks:
        text = str(task.messages[-1].get("content") or "")  # instructions that all rows share say nothing of one
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
