"""Everything that can be wrong with a job, found before anything starts, in one list: code, field, line, remedy."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from actors.engine.parsing import tool_parser_names
from actors.graders.templates import render
from actors.grading.factory import graders_of, templates_of
from actors.sandbox.start import REMEDY as SANDBOX_REMEDY
from actors.sandbox.start import choose_way, sandbox_report
from cluster.planning.context import context_of
from cluster.planning.nodes import Node
from cluster.planning.placement import ClusterPlan, Placement, plan_placement, size
from cluster.preflight.dry_run import TOOLS, dry_run_problems, example_sample
from cluster.preflight.form_check import FILES, endpoint_problems, schema_mistake
from cluster.preflight.limits import resource_problems
from cluster.preflight.model import LoadableModel, read_model
from trainer.data.chat import Renderer
from trainer.data.rows import read_tasks
from trainer.errors import GraderFailed, InvalidJob, Problem, UserError
from trainer.loop.checkpoint import KEEP_BEST
from trainer.spec.endpoints import ToolSpec
from trainer.spec.graders import PythonGrader
from trainer.spec.job import ClusterSpec, JobSpec, Plan, Reinforcement, resolve
from trainer.spec.operator import NOTHING_ALLOWED, Operator
from trainer.types import Task

DEFAULT_PARSER = ClusterSpec().tool_parser
MIN_ANSWER_TOKENS = 16
"""A prompt must leave at least so many tokens of the context to the answer."""
SHOWN_PER_KIND = 20
ROWS_AT_ONCE = 200
"""After so many rows signals are looked at."""
CHECKPOINT_BYTES_PER_PARAMETER = 16
"""Measured: the weights for engines, and the optimizer's state with weights and two moments in float32."""
MIN_FREE_DISK_BYTES = 64 << 20
MANY_GPUS_SHM_BYTES = 256 << 20
"""vLLM starts no engine on several GPUs with less in /dev/shm."""
SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that passed, with all that was read and resolved on the way. `job.model` is a local folder. `warnings` are
    for the user; nothing goes by them.
    """

    job: JobSpec
    plan: Plan
    cluster: ClusterPlan
    context_length: int
    renderer: Renderer
    tasks: list[Task]
    validation: list[Task] = field(default_factory=list)
    test: list[Task] = field(default_factory=list)
    warnings: tuple[str, ...] = ()

    @property
    def placement(self) -> Placement:
        return self.cluster.placement


@dataclass(frozen=True, slots=True)
class Free:
    """What is free where the job will write. `shm_bytes` is None where there is no shared memory."""

    disk_bytes: int
    shm_bytes: int | None

    @classmethod
    def measured(cls, runs: Path) -> Free:
        shm = shutil.disk_usage(SHM).free if SHM.is_dir() else None
        return cls(shutil.disk_usage(_existing(runs)).free, shm)


@dataclass(frozen=True, slots=True)
class _JobRow:
    """A row of one of the job's files; `field` is the file's name in the job."""

    field: str
    file: str
    task: Task

    def problem(self, code: str, part: str, message: str, remedy: str) -> Problem:
        return Problem(code, f"{self.field}{part}", message, remedy, self.file, self.line)

    @property
    def line(self) -> int:
        return int(self.task.row_id.partition("-")[0])


async def prepare(
    job: JobSpec,
    nodes: Sequence[Node],
    runs: Path,
    operator: Operator = NOTHING_ALLOWED,
    *,
    dry_run: bool = True,
    learner: bool = True,
    found: Sequence[Problem] = (),
    free: Free | None = None,
) -> Prepared:
    """Check a job against its files, its model, its endpoints and the cluster's `nodes`.

    `found` are problems that are known already: they come first, and then the job does not pass. `dry_run` calls each
    tool and the grader once, where nothing else is wrong with them. Without `learner`: for a run that only grades.

    Raises:
        InvalidJob: with everything that was found.
    """
    problems = list(found)
    supervised = job.method.type == "supervised"
    files: dict[str, list[Task]] = {}
    for name in FILES:
        files[name], bad = _read(job, name, conversations=supervised)
        problems += bad
    tasks = files["training_file"]
    rows = [_JobRow(name, Path(getattr(job, name)).name, task) for name in FILES for task in files[name]]
    plan = resolve(job, len(tasks)) if tasks else None
    model, bad = read_model(job)
    problems += bad
    context_length = context_of(job, None if model is None else model.max_context)
    cluster = plan_placement(job, nodes, None if model is None else model.shape, context_length, learner=learner)
    if not supervised:
        problems += _tool_problems(job.reinforcement, rows)
        problems += endpoint_problems(job.reinforcement, operator)
        problems += _value_problems(job.reinforcement, rows)
        problems += await asyncio.to_thread(_sandbox_problems, job.reinforcement, operator)
        problems += _engine_problems(job)
    if model is not None:
        problems += await _length_problems(rows, model, context_length, job)
    lacking = [] if operator.wait_for_nodes_s else cluster.lacking
    problems += [*cluster.problems, *lacking, *resource_problems(operator.jobs, cluster.placement.bundles)]
    problems += _folder_problems(runs)
    if model is not None and plan is not None:
        space = free or Free.measured(runs)
        problems += _space_problems(model, plan, cluster.placement, runs, space, alone=len(nodes) < 2)
    if dry_run and not supervised and not any(p.field.startswith("method.") for p in problems):
        bad_lines = {(p.file, p.line) for p in problems}
        good = [row.task for row in rows if (row.file, row.line) not in bad_lines]
        problems += await dry_run_problems(job.reinforcement, good, operator) if good else []
    if problems or model is None or plan is None:
        raise InvalidJob(f"the job has {len(problems)} problem{'s' * (len(problems) != 1)}", _shortened(problems))
    return Prepared(
        job=job.model_copy(update={"model": str(model.path)}),
        plan=plan,
        cluster=cluster,
        context_length=context_length,
        renderer=model.renderer,
        tasks=tasks,
        validation=files["validation_file"],
        test=files["test_file"],
        warnings=(
            *(f"{lack.message}; the job waits for nodes" for lack in cluster.lacking),
            *_warnings(job, plan, model, files),
        ),
    )


def _read(job: JobSpec, name: str, conversations: bool) -> tuple[list[Task], list[Problem]]:
    path = getattr(job, name)
    return read_tasks(Path(path), name, conversations=conversations) if path is not None else ([], [])


# -- tools and graders -------------------------------------------------------------------------------------------------


def _tool_problems(reinforcement: Reinforcement, rows: Sequence[_JobRow]) -> list[Problem]:
    """Tools of rows that no entry of the job serves, and schemas that are none."""
    problems = []
    served = {tool.name for tool in reinforcement.tools}
    mistakes: dict[str, str | None] = {}
    for row in rows:
        for i, tool in enumerate(row.task.tools):
            function = tool["function"]
            if function["name"] not in served:
                message = f"the row's tool {function['name']!r} has no server"
                remedy = f"add an entry with this name and its server_url to {TOOLS}"
                problems.append(row.problem("tool_without_server", f".tools[{i}]", message, remedy))
            schema = function.get("parameters")
            key = json.dumps(schema, sort_keys=True)
            if key not in mistakes:
                mistakes[key] = schema_mistake(schema)
            if (mistake := mistakes[key]) is not None:
                remedy = "give a valid JSON schema (draft 2020-12) of type object"
                problems.append(row.problem("invalid_schema", f".tools[{i}].function.parameters", mistake, remedy))
    return problems


def _value_problems(reinforcement: Reinforcement, rows: Sequence[_JobRow]) -> list[Problem]:
    """Rows without a value that a grader's template takes from them: none of their rollouts could be graded."""
    templates = [
        (f"{field}.{name}", template)
        for field, spec in graders_of(reinforcement)
        for name, template in templates_of(spec)
    ]
    if not rows or not templates:
        return []
    sample = example_sample(reinforcement, rows[0].task)
    problems = []
    for row in rows:
        for where, template in templates:
            try:
                render(template, where, item=row.task.item, sample=sample)
            except GraderFailed as error:
                if str(error.details["path"]).startswith("item"):
                    remedy = "add the value to the row, or mend the grader's template"
                    problems.append(row.problem("missing_value", "", error.message, remedy))
    return problems


def _sandbox_problems(reinforcement: Reinforcement, operator: Operator) -> list[Problem]:
    """That no sandbox can be made for a python grader. One is made and tried: other nodes cannot be seen."""
    python = [field for field, spec in graders_of(reinforcement) if isinstance(spec, PythonGrader)]
    if not python:
        return []
    try:
        choose_way(sandbox_report(), operator.unsandboxed_python)
    except UserError as error:
        return [Problem("no_sandbox", python[0], error.message.removesuffix(f": {SANDBOX_REMEDY}"), SANDBOX_REMEDY)]
    return []


def _engine_problems(job: JobSpec) -> list[Problem]:
    if find_spec("vllm") is None:
        remedy = "pip install 'agent-rft[cpu]', or 'agent-rft[gpu]' where there are GPUs"
        return [Problem("no_engine", "cluster", "vLLM is not installed, which runs the rollouts", remedy)]
    if job.cluster.tool_parser == DEFAULT_PARSER:
        return []  # without asking vLLM, whose import takes longer than all other checks
    names = tool_parser_names()
    if job.cluster.tool_parser in names:
        return []
    message = f"there is no parser {job.cluster.tool_parser!r}"
    return [Problem("unknown_parser", "cluster.tool_parser", message, f"use one of {', '.join(names)}")]


# -- lengths -----------------------------------------------------------------------------------------------------------


async def _length_problems(
    rows: Sequence[_JobRow], model: LoadableModel, context_length: int, job: JobSpec
) -> list[Problem]:
    """Rows whose prompt (or conversation) does not fit, or that the template cannot render."""
    problems = []
    if model.max_context is not None and context_length > model.max_context:
        message = f"is {context_length}, the model allows {model.max_context}"
        remedy = f"give at most {model.max_context}, or auto"
        problems.append(Problem("context_too_long", "cluster.context_length", message, remedy))
    for i, row in enumerate(rows):
        if i % ROWS_AT_ONCE == 0:
            await asyncio.sleep(0)
        messages, tools = row.task.messages, row.task.tools
        try:
            if job.method.type == "supervised":
                length = len(model.renderer.conversation(messages, tools)[0])
            else:
                length = len(model.renderer.prompt(messages, tools)) + MIN_ANSWER_TOKENS
        except Exception as error:  # noqa: BLE001 - a template is a program from outside: it may raise anything
            message = f"the chat template cannot render the row: {type(error).__name__}: {error}"
            problems.append(row.problem("unrenderable_row", ".messages", message, "mend the row"))
            continue
        if length > context_length:
            message = f"the row takes {length} tokens, the context holds {context_length}"
            remedy = "shorten the row or raise cluster.context_length"
            problems.append(row.problem("row_too_long", ".messages", message, remedy))
    return problems


# -- disk and memory ---------------------------------------------------------------------------------------------------


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.resolve().parents) if folder.exists())


def _folder_problems(runs: Path) -> list[Problem]:
    place = _existing(runs)
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return []
    message = f"{place} is " + ("a folder that this user may not write to" if place.is_dir() else "no folder")
    return [Problem("runs_not_writable", "--runs", message, "choose another folder with --runs")]


def _space_problems(
    model: LoadableModel, plan: Plan, placement: Placement, runs: Path, free: Free, *, alone: bool
) -> list[Problem]:
    """Disk for the checkpoints that are kept and the one being written; shared memory for what engines put there. A run
    without a learner has neither checkpoints nor weights on their way.
    """
    problems = []
    trains = placement.learner_ranks > 0
    checkpoints = min(KEEP_BEST + 2, math.ceil(plan.steps / plan.eval_interval)) if trains else 0
    disk = checkpoints * model.shape.num_parameters * CHECKPOINT_BYTES_PER_PARAMETER + MIN_FREE_DISK_BYTES
    if free.disk_bytes < disk:
        what = f"{checkpoints} checkpoint{'s' * (checkpoints > 1)}" if trains else "traces"
        message = f"{size(free.disk_bytes)} are free on the disk of {runs}, {what} may take {size(disk)}"
        problems.append(Problem("disk_full", "--runs", message, "free some space or choose another folder with --runs"))
    # A copy of the weights in Ray's object store and one on its way into each engine. Other nodes cannot be seen.
    shm = trains * (1 + placement.engines) * placement.bytes_per_weight * model.shape.num_parameters
    shm += MANY_GPUS_SHM_BYTES if placement.engine_gpus > 1 else 0
    if alone and (free.shm_bytes or 0) < shm:
        there = "there is no shared memory" if free.shm_bytes is None else f"{size(free.shm_bytes)} are free"
        message = f"{there} in {SHM}, copies of the weights take {size(shm)}"
        remedy = f"enlarge {SHM} (in a container: --shm-size={math.ceil(shm / 2**30)}g)"
        problems.append(Problem("no_shared_memory", "cluster", message, remedy))
    return problems


# -- the list ----------------------------------------------------------------------------------------------------------


def _shortened(problems: Iterable[Problem]) -> list[Problem]:
    """At most SHOWN_PER_KIND of one code and field, and a last one that counts the rest."""
    shown: list[Problem] = []
    counts: dict[tuple[str, str], int] = {}
    for problem in problems:
        key = (problem.code, re.sub(r"\d+", "", problem.field))
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= SHOWN_PER_KIND:
            shown.append(problem)
    for (code, where), count in counts.items():
        if count > SHOWN_PER_KIND:
            shown.append(Problem(code, where, f"and {count - SHOWN_PER_KIND} more of this kind", "mend them likewise"))
    return shown


def _warnings(job: JobSpec, plan: Plan, model: LoadableModel, files: Mapping[str, Sequence[Task]]) -> Iterator[str]:
    """What is allowed but seldom meant."""
    trained = {json.dumps(task.messages, sort_keys=True) for task in files["training_file"]}
    for name in FILES[1:]:
        shared = sum(json.dumps(task.messages, sort_keys=True) in trained for task in files[name])
        if shared:
            of = len(files[name])
            yield f"{name}: {shared} of {of} rows are in the training file too, so their grades say little of new rows"
    if job.method.type == "supervised":
        return
    offered = {tool["function"]["name"] for tasks in files.values() for task in tasks for tool in task.tools}
    settings = set(ToolSpec.model_fields)
    for i, tool in enumerate(job.reinforcement.tools):
        for key in tool.model_extra or ():
            for meant in get_close_matches(key, settings, 1):
                yield f"{TOOLS}[{i}].{key}: is kept for the tool, and means nothing here: did you mean {meant!r}?"
        if tool.name not in offered:
            yield f"{TOOLS}[{i}]: no row offers the tool {tool.name!r}: add its schema to the rows' `tools`"
    if plan.max_thinking_tokens is not None and model.renderer.end_of_thought is None:
        yield "reasoning_effort: the model has no token that ends a thought, so its thoughts cannot be limited"
