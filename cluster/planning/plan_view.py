"""Output of `agent-rft plan`: a job's layout and the memory that it needs, as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from yaml import safe_dump as dump

from agent_rft.cluster.planning.cluster_plan import ASSUMED_WRITE_BYTES_PER_S, StopTime, estimate_step, plan_cluster
from agent_rft.cluster.planning.layout import ClusterPlan
from agent_rft.cluster.planning.model_folder import ModelFolder, read_sizes, resolve_context
from agent_rft.cluster.planning.placement import (
    RECORDED,
    NodeAssignment,
    Placement,
    PlanRequest,
    Settings,
    format_bytes,
    format_bytes_up,
)
from agent_rft.cluster.planning.plan_nodes import HEADROOM, Node
from agent_rft.errors import InvalidJob, Problem
from agent_rft.spec.job_file import read_job

STOP_SETTINGS = ("checkpoint_bytes", "write_bytes_per_s", "wait_s", "grace_s")


def read_request(path: Path, nodes: Sequence[Node]) -> PlanRequest:
    """Read a job file and return the request to plan its job.

    Endpoints and data files need not exist. An unset environment variable is an error only in a required setting, such
    as `model` or `training_file`.

    Raises:
        InvalidJob: The job file or its model has errors.
    """
    job, problems = read_job(path)
    if job is None:
        raise InvalidJob("the job cannot be planned", problems)
    problems = [problem for problem in problems if problem.code != "missing_variable"]
    folder = ModelFolder.find(job.model)
    model, wrong = read_sizes(folder)
    problems += wrong
    if model is None or problems:
        raise InvalidJob("the job cannot be planned", problems)
    context = resolve_context(job, model.max_context)
    return PlanRequest(job, tuple(nodes), model.shape, context, adapter=folder.lora)


def plan_and_print(console: Console, request: PlanRequest, *, smallest: bool, as_json: bool) -> bool:
    """Print the plan of a request, with the fewest GPUs if `smallest`, and return whether it fits."""
    plan = plan_cluster(request, fewest_gpus=smallest)
    settings = _settings_for_placement(request, plan.placement) if smallest and plan.fits else None
    stop = estimate_stop_time(request, plan) if plan.fits else None
    if as_json:
        found = plan_to_json(plan, stop) | ({"smallest": settings} if smallest else {})
        console.print(json.dumps(found), highlight=False, markup=False, soft_wrap=True)
        return plan.fits
    if settings is not None:
        _print_smallest(console, settings)
    print_cluster_plan(console, plan)
    if stop is not None:
        print_stop_time(console, stop)
    return plan.fits


def estimate_stop_time(request: PlanRequest, plan: ClusterPlan) -> StopTime | None:
    """Estimate how long it takes to stop a run, for an assumed disk speed.

    Return None without a model or a learner.
    """
    cost = estimate_step(request, plan)
    if request.model is None or cost is None:
        return None
    return StopTime(request.model.count_trained(plan.placement.lora), ASSUMED_WRITE_BYTES_PER_S, cost.update_s)


def print_cluster_plan(console: Console, plan: ClusterPlan) -> None:
    """Print a plan: tables, notes, warnings and problems.

    The tables show the memory of an engine and of a rank, the layout, and the sizes that each node needs for Ray's
    object store, /dev/shm and /tmp.
    """
    firsts = [assignment for assignment in plan.assignments if assignment.index == 0 and assignment.memory is not None]
    if firsts:
        console.print(_memory_table(firsts))
    console.print(_node_table(plan))
    console.print(_size_table(plan))
    for line in _notes(plan):
        console.print(line, highlight=False, soft_wrap=True)
    for warning in plan.warnings:
        console.print(f"[yellow]warning[/] {escape(str(warning))}", highlight=False, soft_wrap=True)
    for problem in (*plan.resource_problems, *plan.problems):
        console.print(f"[red]does not fit[/] {escape(str(problem))}", highlight=False, soft_wrap=True)
    if plan.fits:
        console.print(f"[green]the job fits[/]: at least {HEADROOM:.0%} of the known memory stays free")


def _settings_for_placement(request: PlanRequest, placement: Placement) -> dict[str, Any]:
    """Return the settings to add to a job so that it always gets `placement`."""
    cluster, lora = request.job.cluster, placement.lora
    found = {f"cluster.{name}": getattr(placement, name) for name in RECORDED if getattr(cluster, name) == "auto"}
    if cluster.colocated == "auto":
        found["cluster.colocated"] = placement.colocated
    if request.job.optimizer_settings.lora == "auto":
        found[f"method.{request.job.method.type}.algorithm.lora"] = "off" if lora is None else {"rank": lora.rank}
    return found


def _print_smallest(console: Console, settings: Settings) -> None:
    """Print `settings` in the format of a job file.

    With these settings, the job always gets the layout with the fewest GPUs.
    """
    if not settings:
        console.print("the job already sets all settings of its layout, so no value is chosen automatically")
        return
    console.print("[bold]set this in the job to always get the layout with the fewest GPUs:[/]")
    console.print(
        dump(nest_settings(settings), sort_keys=False).rstrip(), highlight=False, markup=False, soft_wrap=True
    )


def nest_settings(settings: Settings) -> dict[str, Any]:
    """Convert settings with paths as keys, such as `cluster.engines`, to the nested mappings of a job file."""
    found: dict[str, Any] = {}
    for path, value in settings.items():
        *parents, name = path.split(".")
        place = found
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    return found


def print_stop_time(console: Console, stop: StopTime) -> None:
    """Print the settings of Ray and Kubernetes that leave enough time to stop the run."""
    write = partial(console.print, highlight=False, soft_wrap=True)
    settings = f"RAY_JOB_STOP_WAIT_TIME_S={stop.wait_s}, terminationGracePeriodSeconds: {stop.grace_s}"
    write(f"settings that leave enough time for stopping the run: {settings}")
    size, speed = format_bytes(stop.checkpoint_bytes), format_bytes(stop.write_bytes_per_s)
    written = f"a checkpoint of {size}, written at {speed} per second"
    write(f"  assumed: {written}; `agent-rft check` measures the actual write speed")


def _memory_table(firsts: Sequence[NodeAssignment]) -> Table:
    """Return a table with one row for each kind of data in memory, such as weights.

    The columns are the GPU memory and the host memory of each role. `firsts` contains the first engine and the first
    rank, if they exist.
    """
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
        table.add_row(part, *(format_bytes(parts[part]) if part in parts else "" for parts in columns.values()))
    table.add_section()
    table.add_row("[bold]total[/]", *(f"[bold]{format_bytes(sum(parts.values()))}[/]" for parts in columns.values()))
    return table


def _node_table(plan: ClusterPlan) -> Table:
    table = Table("node", box=SIMPLE_HEAD)
    for column in ("cores", "GPUs", "memory per GPU", "memory", "used"):
        table.add_column(column, justify="right")
    table.add_column("actors")
    for node, used in zip(plan.nodes, plan.host_bytes, strict=True):
        gpu = _format_known_bytes(node.gpu_memory_bytes) if node.gpus else ""
        resources = f"{node.cores:g}", f"{node.gpus:g}", gpu, _format_known_bytes(node.memory_bytes), format_bytes(used)
        table.add_row(escape(node.name), *resources, _actors_text(p for p in plan.assignments if p.node is node))
    if unplaced := [assignment for assignment in plan.assignments if assignment.node is None]:
        table.add_row("[red]not placed[/]", *[""] * 5, _actors_text(unplaced))
    return table


def _size_table(plan: ClusterPlan) -> Table:
    table = Table("required sizes per node", box=SIMPLE_HEAD)
    for column in ("Ray's object store", "/dev/shm", "/tmp"):
        table.add_column(column, justify="right")
    for node, sizes in zip(plan.nodes, plan.sizes, strict=True):
        needed = (sizes.store_bytes, sizes.shm_bytes, sizes.tmp_bytes)
        table.add_row(escape(node.name), *map(format_bytes_up, needed))
    return table


def _actors_text(assignments: Iterable[NodeAssignment]) -> str:
    """Return actors as text, such as `engine 0, 1; learner rank 0`."""
    indices: dict[str, list[str]] = {}
    for assignment in assignments:
        indices.setdefault(assignment.role, []).append(str(assignment.index))
    return "; ".join(f"{role} {', '.join(numbers)}" for role, numbers in indices.items())


def _notes(plan: ClusterPlan) -> list[str]:
    placement, notes = plan.placement, []
    sequences = [assignment.memory.num_sequences for assignment in plan.assignments if assignment.memory is not None]
    if cached := [number for number in sequences if number is not None]:
        notes.append(
            f"an engine's cache holds {min(cached):,.1f} full-length sequences, or a larger number of shorter ones"
        )
    notes.append("each engine and each rank runs on one node; Ray uses as few nodes as possible (PACK)")
    notes += [] if (how := describe_sharing(placement)) is None else [how]
    if placement.has_shared_engines:
        notes.append(
            "jobs share engines: if another job has started the engines, this job needs free resources only for its "
            "learner"
        )
    if placement.engines > 1 and not placement.colocated:
        notes.append("the first engine and all ranks start together; further engines join when resources are free")
    notes.append(
        "driver, dispatchers and grader pool reserve no cores; dispatchers and grader pool run on the engines' nodes"
    )
    notes += map(str, plan.choices)
    if any(node.gpus and node.gpu_memory_bytes is None for node in plan.nodes):
        notes.append("[yellow]the memory of some GPUs is unknown and was not checked[/]")
    return notes


def describe_sharing(placement: Placement) -> str | None:
    """Return a sentence that describes how engines and ranks share cores or GPUs; None if they share nothing."""
    if not placement.colocated:
        return None
    if not placement.shares_gpus:
        return "an engine and its learner ranks take turns on the same cores, so tokens come from the newest weights"
    shared = "an engine and a learner rank share a GPU"
    part = f"the engine takes {placement.gpu_share:.0%} of the GPU's memory"
    estimates = "The memory sizes are estimates that were not yet measured on GPUs"
    if placement.takes_turns:
        return (
            f"{shared} and take turns, so tokens come from the newest weights. While one of them runs, the other is "
            f"offloaded to host memory. While the engine runs, {part}. {estimates}"
        )
    return f"{shared} and run concurrently; {part}. {estimates}"


def _format_known_bytes(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else format_bytes(num_bytes)


def plan_to_json(plan: ClusterPlan, stop: StopTime | None = None) -> dict[str, Any]:
    """Return the plan as JSON values, with memory in bytes."""
    return {
        "fits": plan.fits,
        "dtype": plan.placement.dtype,
        "lora": None if plan.placement.lora is None else plan.placement.lora.rank,
        "layout": {name: getattr(plan.placement, name) for name in RECORDED},
        "colocated": plan.placement.colocated,
        "turns": plan.placement.takes_turns,
        "gpu_share": plan.placement.gpu_share,
        "micro_batch_tokens": plan.placement.micro_batch_tokens,
        "places": [_assignment_to_json(assignment) for assignment in plan.assignments],
        "nodes": [
            {
                "name": node.name,
                "cores": node.cores,
                "gpus": node.gpus,
                "memory_bytes": node.memory_bytes,
                "gpu_memory_bytes": node.gpu_memory_bytes,
                "used_bytes": taken,
                "needs": {
                    "object_store_bytes": sizes.store_bytes,
                    "shm_bytes": sizes.shm_bytes,
                    "tmp_bytes": sizes.tmp_bytes,
                },
            }
            for node, taken, sizes in zip(plan.nodes, plan.host_bytes, plan.sizes, strict=True)
        ],
        "warnings": [_problem_to_json(warning) for warning in plan.warnings],
        "problems": [_problem_to_json(problem) for problem in (*plan.resource_problems, *plan.problems)],
        "stop": None if stop is None else {"measured": False} | {name: getattr(stop, name) for name in STOP_SETTINGS},
    }


def _assignment_to_json(assignment: NodeAssignment) -> dict[str, Any]:
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


def _problem_to_json(problem: Problem) -> dict[str, str]:
    return {name: getattr(problem, name) for name in ("code", "field", "message", "fix")}
