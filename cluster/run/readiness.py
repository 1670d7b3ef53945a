"""Draws each row of a file several times and finds out what that says: `agent-rft ready`, and the same of the API.

Rows are drawn in portions, each written before the next begins: a run that was stopped goes on with the rows that are
missing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_rft.actors.grading.pool import GraderPool
from agent_rft.cluster.preflight.prepare import Prepared
from agent_rft.cluster.readiness.findings import Readiness, readiness_of
from agent_rft.cluster.records.run_folder import DRAWS, RunFolder
from agent_rft.cluster.run.best_draws import reader_of, write_best_draws
from agent_rft.cluster.views.regrade import cases_of, grade_cases
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.operator.config import Operator
from agent_rft.types import Grade, Group, Task

ROWS_AT_ONCE = 64
"""Rows of a portion: with 8 rollouts each they fill the engines of a node, and a stop loses no more."""
GRADED_TWICE = 200
"""Rollouts whose answers are graded a second time: a share of changed grades is then known to 7 points."""

DrawnFile = Literal["training_file", "validation_file", "test_file"]
Draw = Callable[[Sequence[Task], str], Awaitable[list[Group]]]
"""Rows, and the name of the file that their rollouts are written to -> one group for each."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a job is looked at.

    Attributes:
        samples: Rollouts of each row.
        file: The job's file that is drawn.
        target_s: Wanted model and tool time of a rollout, in seconds.
        export: Where to write the best draws, as rows of a supervised job.
    """

    samples: int = 8
    file: DrawnFile = "training_file"
    target_s: float | None = None
    export: Path | None = None


async def look_at(prepared: Prepared, folder: RunFolder, look: Look, draw: Draw, operator: Operator) -> Readiness:
    """The findings of a job whose actors run. What the folder has of the rows is not drawn again."""
    files = {
        "training_file": prepared.tasks,
        "validation_file": prepared.validation,
        "test_file": prepared.test,
    }
    tasks = files.pop(look.file)
    groups, rollout_s = await drawn(tasks, look.samples, folder, draw)
    if look.export is not None:
        await asyncio.to_thread(_export, look.export, groups, prepared)
    again = await graded_again(groups, prepared.job.reinforcement, operator)
    return await asyncio.to_thread(
        readiness_of,
        prepared.job,
        prepared.plan,
        tasks,
        groups,
        files,
        samples=look.samples,
        again=again,
        file=look.file,
        target_s=look.target_s,
        rollout_s=rollout_s,
    )


async def drawn(
    tasks: Sequence[Task], samples: int, folder: RunFolder, draw: Draw, clock: Callable[[], float] = time.monotonic
) -> tuple[list[Group], float | None]:
    """One group for each row in the rows' order, and the seconds per rollout of those that were drawn now."""
    portions = folder.draws
    found = {
        group.request.task.row_id: group
        for name in portions
        for group in folder.read_groups(name)
        if group.request.size == samples
    }
    missing = [task for task in tasks if task.row_id not in found]
    started, count = clock(), 0
    for number, start in enumerate(range(0, len(missing), ROWS_AT_ONCE), start=len(portions) + 1):
        groups = await draw(missing[start : start + ROWS_AT_ONCE], f"{DRAWS}-{number:06d}")
        found |= {group.request.task.row_id: group for group in groups}
        count += sum(len(group.rollouts) for group in groups)
    return [found[task.row_id] for task in tasks], (clock() - started) / count if count else None


async def graded_again(
    groups: Sequence[Group], reinforcement: Reinforcement, operator: Operator
) -> Mapping[str, float | None]:
    """The second grades of up to GRADED_TWICE answers, without guards; the first rollouts of all rows come first.

    Raises:
        UserError: An endpoint answered 401 or 403.
    """
    first_ones = sorted((rollout for group in groups for rollout in group.rollouts), key=lambda r: r.sample)
    chosen = {rollout.trace_id for rollout in first_ones[:GRADED_TWICE]}
    cases = [case for case in cases_of(groups, reinforcement.response_format is not None) if case.trace_id in chosen]
    bare = reinforcement.model_copy(update={"guards": (), "held_out_grader": None})
    pool = GraderPool.of(bare, operator)
    grades = await grade_cases([case.again(1) for case in cases], pool, lambda _: None)
    return {
        case.trace_id: grade.value if isinstance(grade, Grade) else None
        for case, grade in zip(cases, grades, strict=True)
    }


def _export(path: Path, groups: Sequence[Group], prepared: Prepared) -> None:
    threshold = prepared.job.reinforcement.grader.pass_threshold
    write_best_draws(path, groups, threshold, reader_of(prepared.renderer))
