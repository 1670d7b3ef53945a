"""Builders of tasks, rollouts, groups, plans and jobs with consistent defaults, which keywords replace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from agent_rft.rows.dataset_rows import read_tasks
from agent_rft.spec.graders import GraderSpec
from agent_rft.spec.job import JobSpec
from agent_rft.spec.step_plan import StepPlan
from agent_rft.types import (
    DiscardedRollout,
    Grade,
    Group,
    GroupRequest,
    Message,
    Purpose,
    Rollout,
    Segment,
    Task,
    ToolSchema,
    Turn,
)

EXACT = {
    "type": "string_check",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.reference_answer }}",
    "operation": "eq",
}
"""A grader in the form of a job file."""


def task(name: str = "1", text: str = "", tools: Sequence[ToolSchema] = (), **item: Any) -> Task:
    messages: tuple[Message, ...] = ({"role": "user", "content": text or f"question {name}"},)
    return Task(name, messages, tuple(tools), {"messages": list(messages), **item})


def tasks_of(path: Path) -> list[Task]:
    """The rows of a valid data file."""
    tasks, problems = read_tasks(path, "training_file")
    assert not problems
    return tasks


def group_request(index: int = 0, size: int = 8, purpose: Purpose = "train", **changes: Any) -> GroupRequest:
    return replace(GroupRequest(task(str(index)), 0, index, size, purpose, 1.0), **changes)


def rollout(
    request: GroupRequest, sample: int = 0, grade: float = 1.0, version: int = 0, sampled: int = 3, **changes: Any
) -> Rollout:
    """A rollout with one segment of two prompt tokens and `sampled` sampled tokens; keywords replace arrays, too."""
    length = 2 + sampled
    mask = np.arange(length) >= 2
    arrays = {
        "token_ids": np.arange(length, dtype=np.int32),
        "loss_mask": mask,
        "logprobs": np.where(mask, -0.5, 0.0).astype(np.float32),
        "versions": np.where(mask, version, -1).astype(np.int32),
    }
    segment = Segment(**{name: changes.pop(name, array) for name, array in arrays.items()})
    made = Rollout(
        trace_id=f"trace_{request.purpose}_{request.index}_{sample}",
        row_id=request.task.row_id,
        epoch=request.epoch,
        sample=sample,
        attempt=request.attempt,
        segments=(segment,),
        turns=(Turn(2, length, "text", model_s=0.1),),
        answer="text",
        finish="answer",
        grade=Grade(grade),
        reward=grade,
    )
    return replace(made, **changes)


def untrained(made: Rollout) -> Rollout:
    """The rollout if its grader had answered `train: false`."""
    return replace(made, grade=replace(made.grade, train=False))


def group(request: GroupRequest, grades: Sequence[float | None], version: int = 0, **changes: Any) -> Group:
    """One rollout per grade; None discards it."""
    ended = list(zip(request.samples or range(len(grades)), grades, strict=False))
    lost = [DiscardedRollout("t", request.task.row_id, i, "tool_failed", "down") for i, g in ended if g is None]
    graded = [rollout(request, i, g, version) for i, g in ended if g is not None]
    return replace(Group(request, tuple(graded), tuple(lost)), **changes)


def plan(**changes: Any) -> StepPlan:
    values = {
        "num_rows": 6,
        "batch_size": 2,
        "n_epochs": 2,
        "group_size": 4,
        "steps": 6,
        "eval_interval": 2,
        "eval_samples": 1,
        "updates_per_batch": 1,
        "learning_rate": 1e-3,
        "max_reasoning_tokens": None,
    }
    return StepPlan(**(values | changes))


def grader_spec(**values: Any) -> GraderSpec:
    spec: GraderSpec = TypeAdapter(GraderSpec).validate_python(values)
    return spec


def raw_job(**reinforcement: Any) -> dict[str, Any]:
    """The content of a job file; the keywords go into its `reinforcement`."""
    method = {"type": "reinforcement", "reinforcement": {"grader": EXACT, **reinforcement}}
    return {"model": "org/model", "training_file": "train.jsonl", "method": method}


def job(reinforcement: Mapping[str, Any] | None = None, **changes: Any) -> JobSpec:
    """A job; the keywords replace top-level keys."""
    return JobSpec.model_validate(raw_job(**(reinforcement or {})) | changes)
