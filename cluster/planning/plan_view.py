"""The output of `agent-rft plan`: what a job needs of a cluster, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cluster.planning.context import context_of
from cluster.planning.model_folder import read_folder
from cluster.planning.nodes import Node
from cluster.planning.placement import Assignment, ClusterPlan, plan_placement, size
from trainer.errors import InvalidJob, Problem
from trainer.spec.job_file import read_job


def plan_of_file(path: Path, nodes: Sequence[Node]) -> ClusterPlan:
    """The plan of a job file. Its endpoints, data files and environment variables may be missing.

    Raises:
        InvalidJob: the job file or its model has mistakes.
    """
    job, problems = read_job(path)
    problems = [problem for problem in problems if problem.code != "missing_variable"]
    model = None
    if job is not None:
        model, wrong = read_folder(job.model)
        problems += wrong
    if job is None or model is None or problems:
        raise InvalidJob("the job cannot be planned", problems)
    return plan_placement(job, nodes, model.shape, context_of(job, model.max_context))


def print_cluster_plan(console: Console, plan: ClusterPlan) -> None:
    """Print the memory of an engine and a rank, the assignment to nodes, notes on scheduling, and what does not fit."""
    firsts = [assignment for assignment in plan.assignments if assignment.index == 0 and assignment.memory is not None]
    if firsts:
        console.print(_memory_table(firsts))
    console.print(_node_table(plan))
    for line in _notes(plan):
        console.print(line, highlight=False, soft_wrap=True)
    for problem in (*plan.lacking, *plan.problems):
        console.print(f"[red]does not fit[/] {escape(str(problem))}", highlight=False, soft_wrap=True)
    if not plan.lacking and not plan.problems:
        console.print("[green]it fits[/]")


def _memory_table(firsts: Sequence[Assignment]) -> Table:
    """A row per part of memory, a column per kind of actor and of memory; actors of one kind are equal."""
    columns: dict[str, Mapping[str, int]] = {}
    for assignment in firsts:
        assert assignment.memory is not None
        if assignment.memory.gpu:
            columns[f"{assignment.role}: each GPU"] = assignment.memory.gpu
        columns[f"{assignment.role}: its node"] = assignment.memory.host
    table = Table("memory", box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right")
    for part in dict.fromkeys(part for parts in columns.values() for part in parts):
        table.add_row(part, *(size(parts[part]) if part in parts else "" for parts in columns.values()))
    table.add_section()
    table.add_row("[bold]total[/]", *(f"[bold]{size(sum(parts.values()))}[/]" for parts in columns.values()))
    return table


def _node_table(plan: ClusterPlan) -> Table:
    table = Table("node", box=SIMPLE_HEAD)
    for column in ("cores", "GPUs", "memory per GPU", "memory", "used"):
        table.add_column(column, justify="right")
    table.add_column("actors")
    for node, used in zip(plan.nodes, plan.host_bytes, strict=True):
        gpu = _known(node.gpu_memory_bytes) if node.gpus else ""
        resources = f"{node.cores:g}", f"{node.gpus:g}", gpu, _known(node.memory_bytes), size(used)
        table.add_row(escape(node.name), *resources, _who(p for p in plan.assignments if p.node is node))
    if unplaced := [assignment for assignment in plan.assignments if assignment.node is None]:
        table.add_row("[red]not placed[/]", *[""] * 5, _who(unplaced))
    return table


def _who(assignments: Iterable[Assignment]) -> str:
    """Actors as text, such as `engine 0, 1; learner rank 0`."""
    indices: dict[str, list[str]] = {}
    for assignment in assignments:
        indices.setdefault(assignment.role, []).append(str(assignment.index))
    return "; ".join(f"{role} {', '.join(numbers)}" for role, numbers in indices.items())


def _notes(plan: ClusterPlan) -> list[str]:
    placement, notes = plan.placement, []
    sequences = [assignment.memory.num_sequences for assignment in plan.assignments if assignment.memory is not None]
    if cached := [number for number in sequences if number is not None]:
        notes.append(f"an engine's cache holds {min(cached):,.1f} sequences of full context length, or more short ones")
    shared = "; an engine and its ranks share one bundle and take turns" if placement.colocated else ""
    notes.append(f"each engine and each rank is on one node; Ray packs them onto few nodes (PACK){shared}")
    if placement.engines > 1 and not placement.colocated:
        notes.append("the first engine and all ranks start together; further engines join when resources are free")
    notes.append("driver, dispatchers and grader pool reserve no cores; the last two run beside the engines")
    if any(node.gpus and node.gpu_memory_bytes is None for node in plan.nodes):
        notes.append("[yellow]the memory of some GPUs is unknown and not checked[/]")
    return notes


def _known(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else size(num_bytes)


def plan_as_json(plan: ClusterPlan) -> dict[str, Any]:
    """The plan as JSON values; memory in bytes."""
    return {
        "fits": not plan.lacking and not plan.problems,
        "dtype": plan.placement.dtype,
        "colocated": plan.placement.colocated,
        "places": [_assignment(assignment) for assignment in plan.assignments],
        "nodes": [
            {
                "name": node.name,
                "cores": node.cores,
                "gpus": node.gpus,
                "memory_bytes": node.memory_bytes,
                "gpu_memory_bytes": node.gpu_memory_bytes,
                "taken_bytes": taken,
            }
            for node, taken in zip(plan.nodes, plan.host_bytes, strict=True)
        ],
        "problems": [_problem(problem) for problem in (*plan.lacking, *plan.problems)],
    }


def _assignment(assignment: Assignment) -> dict[str, Any]:
    memory = assignment.memory
    return {
        "role": assignment.role,
        "index": assignment.index,
        "node": None if assignment.node is None else assignment.node.name,
        "cores": assignment.cores,
        "gpus": assignment.gpus,
        "gpu_memory_bytes": {} if memory is None else dict(memory.gpu),
        "memory_bytes": {} if memory is None else dict(memory.host),
        "cached_sequences": None if memory is None else memory.num_sequences,
    }


def _problem(problem: Problem) -> dict[str, str]:
    return {name: getattr(problem, name) for name in ("code", "field", "message", "remedy")}
