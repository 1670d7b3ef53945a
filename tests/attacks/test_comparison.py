"""A comparison of large evaluations: four sides of 2,000 long rollouts take little more memory than their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from agent_rft.rows.rollout_files import write_groups
from agent_rft.serve.jobs.job_comparisons import ComparisonSide, JobComparisons
from agent_rft.types import Group, Segment
from tests.support.budget import budget
from tests.support.synthetic import Synthetic

ROWS, TOKENS, OUTPUT = 2_000, 2_000, "vorzen/2013/income: 1,204 " * 200
NAMES = ("test-before", "test-after")


def evaluation(skill: float) -> Iterator[Group]:
    """One row after the other: a rollout of 2,000 tokens and more, whose tool answers 5 kB."""
    synthetic, segment = Synthetic(), Segment(
        np.arange(TOKENS, dtype=np.int32),
        np.ones(TOKENS, dtype=np.bool_),
        np.full(TOKENS, -0.5, dtype=np.float32),
        np.ones(TOKENS, dtype=np.int32),
    )  # fmt: skip
    (shape,) = synthetic.groups(1, 1, "test", 0, skill)
    (rollout,) = shape.rollouts
    turns = tuple(replace(t, results=tuple(replace(r, output=OUTPUT) for r in t.results)) for t in rollout.turns)
    for number in range(ROWS):
        task = synthetic.task(number)
        long = replace(rollout, row_id=task.row_id, segments=(segment,), turns=turns, reward=skill)
        yield Group(replace(shape.request, task=task), (long,))


def test_four_long_evaluations_are_compared_within_64_mib(tmp_path: Path) -> None:
    for name, skill in zip(NAMES, (0.0, 1.0), strict=True):
        write_groups(tmp_path / "ftjob-1" / "rollouts" / f"{name}.jsonl.zst", evaluation(skill))
    with budget(cpu_s=60.0, mib=64.0):
        found = JobComparisons(tmp_path).compare([ComparisonSide("ftjob-1", name) for name in NAMES * 2])
    assert len(found["rows"]) == ROWS and found["changes"][0]["measures"]["reward"]["change"] == 1.0
