"""Readiness check: samples each row of a file several times and reports what to do before training.

`agent-rft ready` and the API run this check. The rollouts of each chunk of rows are written before the next chunk
starts. A check that was stopped can therefore be resumed without sampling these rows again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_rft.actors.engine.chat.turn_parsers import ParsedTurn, load_parser
from agent_rft.actors.grading.grader_pool import GraderPool
from agent_rft.actors.rollout.trajectory import Trajectory, parse_turn
from agent_rft.chat.renderer import Renderer
from agent_rft.cluster.checks.check_job import CheckedJob
from agent_rft.cluster.readiness.readiness_report import Readiness, judge_samples
from agent_rft.cluster.records.run_folder import READINESS_PREFIX, RunFolder
from agent_rft.cluster.views.regrade import grade_cases, make_cases
from agent_rft.rows.durable_write import write_durably
from agent_rft.spec.job import Reinforcement
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.types import Grade, Group, Rollout, Task, ToolSchema

ROWS_PER_CHUNK = 64
"""Rows per chunk. With 8 rollouts per row, a chunk fills the engines of a node. A stop loses at most one chunk."""
MAX_GRADED_TWICE = 200
"""Maximum number of rollouts that are graded twice.

With 200 rollouts, the share of grades that change is known to within 7 percentage points.
"""

SampledFile = Literal["training_file", "validation_file", "test_file"]
SampleRows = Callable[[Sequence[Task], str], Awaitable[list[Group]]]
"""Function (rows, file name) that samples the rows, writes the rollout file, and returns one group per row."""


@dataclass(frozen=True, slots=True)
class ReadinessOptions:
    """Options of a readiness check.

    Attributes:
        samples: Rollouts per row.
        file: Job field that names the file whose rows are sampled.
        target_s: Maximum seconds that the model and the tools should take per rollout; None: no target.
        export_file: File to which the best rollouts are written, as rows of a supervised job; None: no file.
    """

    samples: int = 8
    file: SampledFile = "training_file"
    target_s: float | None = None
    export_file: Path | None = None


async def judge_readiness(
    prepared: CheckedJob, folder: RunFolder, options: ReadinessOptions, sample: SampleRows, operator: OperatorConfig
) -> Readiness:
    """Run the readiness check of a job whose actors are already running, and return its findings.

    Rows that have rollouts in `folder` are not sampled again.
    """
    files = {
        "training_file": prepared.tasks,
        "validation_file": prepared.validation,
        "test_file": prepared.test,
    }
    tasks = files.pop(options.file)
    groups, rollout_s = await sample_rows(tasks, options.samples, folder, sample)
    if options.export_file is not None:
        await asyncio.to_thread(_export, options.export_file, groups, prepared)
    again = await grade_again(groups, prepared.job.reinforcement, operator)
    return await asyncio.to_thread(
        judge_samples,
        prepared.job,
        prepared.plan,
        tasks,
        groups,
        files,
        samples=options.samples,
        second_grades=again,
        file=options.file,
        target_s=options.target_s,
        rollout_s=rollout_s,
    )


async def sample_rows(
    tasks: Sequence[Task],
    samples: int,
    folder: RunFolder,
    sample: SampleRows,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[Group], float | None]:
    """Sample the rows that have no rollouts in `folder`.

    Returns:
        One group per row, in the order of `tasks`, and the mean seconds per new rollout (None if no row was sampled).
    """
    chunks = folder.readiness_files
    found = {
        group.request.task.row_id: group
        for name in chunks
        for group in folder.read_groups(name)
        if group.request.size == samples
    }
    missing = [task for task in tasks if task.row_id not in found]
    started, count = clock(), 0
    for number, start in enumerate(range(0, len(missing), ROWS_PER_CHUNK), start=len(chunks) + 1):
        groups = await sample(missing[start : start + ROWS_PER_CHUNK], f"{READINESS_PREFIX}-{number:06d}")
        found |= {group.request.task.row_id: group for group in groups}
        count += sum(len(group.rollouts) for group in groups)
    return [found[task.row_id] for task in tasks], (clock() - started) / count if count else None


async def grade_again(
    groups: Sequence[Group], reinforcement: Reinforcement, operator: OperatorConfig
) -> Mapping[str, float | None]:
    """Grade up to MAX_GRADED_TWICE rollouts a second time, without guards.

    The first rollouts of all rows are chosen first, then the second rollouts, and so on.

    Returns:
        The second grades by trace id; None if grading failed.

    Raises:
        UserError: An endpoint answered 401 or 403.
    """
    first_ones = sorted((rollout for group in groups for rollout in group.rollouts), key=lambda r: r.sample)
    chosen = {rollout.trace_id for rollout in first_ones[:MAX_GRADED_TWICE]}
    cases = [case for case in make_cases(groups, reinforcement.response_format is not None) if case.trace_id in chosen]
    bare = reinforcement.model_copy(update={"guards": (), "held_out_grader": None})
    pool = GraderPool.for_job(bare, operator)
    grades = await grade_cases([case.for_run(1) for case in cases], pool, lambda _: None)
    return {
        case.trace_id: grade.value if isinstance(grade, Grade) else None
        for case, grade in zip(cases, grades, strict=True)
    }


def _export(path: Path, groups: Sequence[Group], prepared: CheckedJob) -> None:
    threshold = prepared.job.reinforcement.grader.pass_threshold
    write_rejection_samples(path, groups, threshold, make_turn_reader(prepared.renderer))


# -- rejection sampling ------------------------------------------------------------------------------------------------


ReadTurn = Callable[[Sequence[int], Sequence[ToolSchema]], ParsedTurn]
"""Function that parses a turn from its sampled tokens and the tools of the row."""


def make_turn_reader(renderer: Renderer) -> ReadTurn:
    """Return a function that parses turns in the same way as during sampling."""
    parse = load_parser(renderer.family, renderer.tokenizer)
    return lambda token_ids, tools: parse_turn(renderer, parse, token_ids, tools)[0]


def write_rejection_samples(path: Path, groups: Sequence[Group], pass_threshold: float, read: ReadTurn) -> int:
    """Write the best passing rollout of each row to a JSONL file, as a conversation; return the number of lines.

    Raises:
        OSError: The file cannot be written.
    """
    rows = list(rejection_sampling(groups, pass_threshold, read))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return len(rows)


def rejection_sampling(groups: Sequence[Group], pass_threshold: float, read: ReadTurn) -> Iterator[dict[str, Any]]:
    """Yield, for each row, the passing rollout with the highest reward, converted to a row of a supervised job.

    If rewards are equal, the shortest rollout is used. Rollouts that have an invalid call or ended at a limit are never
    used, because they are not worth imitating.
    """
    for group in groups:
        good = [
            r
            for r in group.trainable
            if r.grade.value >= pass_threshold and r.finish == "answer" and _has_valid_calls(r)
        ]
        if good:
            best = min(good, key=lambda r: (-r.reward, r.num_sampled, r.sample))
            yield to_supervised_row(group.request.task, best, read)


def _has_valid_calls(rollout: Rollout) -> bool:
    return all(result.error in (None, "tool_error") for result in rollout.results)


def to_supervised_row(task: Task, rollout: Rollout, read: ReadTurn) -> dict[str, Any]:
    """Convert a rollout to a row of a supervised job, with the rollout's conversation as messages."""
    trajectory = Trajectory([], list(task.messages), [])
    for turn in rollout.turns:
        sampled = rollout.segments[turn.segment].token_ids[turn.start : turn.stop].tolist()
        trajectory.add_turn(turn, read(sampled, task.tools), [[] for _ in turn.calls])
    messages = [{key: value for key, value in m.items() if value != []} for m in trajectory.messages]
    return {"messages": messages} | ({"tools": list(task.tools)} if task.tools else {})
