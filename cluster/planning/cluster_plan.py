"""Plan of a job: its layout on the nodes, and the estimated durations of a step and of stopping a run.

If the job does not fit, the plan lists fixes: settings to change, or nodes to add.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

from agent_rft.cluster.planning.layout import ClusterPlan, lay_out
from agent_rft.cluster.planning.model_shape import ModelShape
from agent_rft.cluster.planning.placement import Placement, PlanRequest, Settings
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.errors import Problem
from agent_rft.spec.job import CheckpointInterval, ClusterSpec, JobSpec
from agent_rft.spec.model_options import LoraSpec
from agent_rft.spec.step_plan import DEFAULT_ROWS, resolve_plan
from agent_rft.trainer.learner.rank_memory_sizes import STATE_BYTES

MAX_FIXES = 2
MORE_NODES = (1, 2, 3, 4, 8, 16)
MAX_KINDS = 4
MAX_TRIES = 60
"""Maximum number of placements to try for one fix, so that a job is rejected within seconds."""
MIN_CONTEXT = 1024
FREED = (
    "dtype",
    "zero_stage",
    "micro_batch_tokens",
    "weight_transport",
    "colocated",
    "share_engines",
    "learner_ranks",
    "engines",
    "engine_gpus",
    "offload",
    "max_num_seqs",
    "engine_cores",
    "rank_cores",
)
"""Settings of `cluster` that a fix may reset to their defaults, smallest change first."""
NONE_FOUND = "found no settings of `cluster` that make the job fit; use nodes with more cores, GPUs or memory"


@dataclass(frozen=True, slots=True)
class PlanFix:
    """Fix for a job that does not fit: settings to change, nodes to add, or both.

    `count` is the number of nodes to add. Each of them is like `node`. If `node` is None, no nodes are added.
    """

    settings: Settings = field(default_factory=dict)
    node: Node | None = None
    count: int = 0

    def apply(self, request: PlanRequest) -> PlanRequest:
        added = [replace(self.node, name=f"added {i}") for i in range(self.count)] if self.node is not None else []
        return replace(request.with_settings(self.settings), nodes=(*request.nodes, *added))

    def __str__(self) -> str:
        nodes = "" if self.node is None else f"add {self.count} node{'s' * (self.count > 1)} like {self.node.name}"
        settings = _join_with_and([f"{path} to {_format_setting(value)}" for path, value in self.settings.items()])
        return " and ".join(filter(None, (nodes, settings and f"set {settings}")))


def _join_with_and(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def _format_setting(value: Any) -> str:
    if isinstance(value, LoraSpec):
        return "{}"  # its defaults
    return str(value).lower() if isinstance(value, bool) else str(value)


def find_fixes(request: PlanRequest) -> list[PlanFix]:
    """Return fixes for a request that does not fit: up to MAX_FIXES changes of settings, and nodes to add.

    If a fix enables LoRA, a smaller context alone may also make the job fit. In this case, both fixes are returned.
    """
    found = next(filter(None, _setting_fixes(request)), [])
    if _lora_setting(request).keys() & {path for fix in found for path in fix.settings}:
        shorter = (PlanFix({"cluster.context_length": context}) for context in _halved_contexts(request.context_length))
        found = [*found, *islice((fix for fix in shorter if _fits(request, fix)), 1)]
    added = next((fix for fix in _node_fixes(request) if _fits(request, fix)), None)
    if added is None and not found:
        added = _node_and_setting_fix(request)
    return [*found, added] if added is not None else found


def _setting_fixes(request: PlanRequest) -> Iterator[list[PlanFix]]:
    """Yield lists of fixes that only change settings, smallest effect on training first. A list may be empty."""
    freed, adapted = _list_default_values(request), _lora_setting(request)
    on_device = {path: value for path, value in freed.items() if path != "cluster.offload"}
    single = (PlanFix({path: value}) for path, value in on_device.items())
    yield [fix for fix in single if _fits(request, fix)][:MAX_FIXES]
    # Offload comes last, because it makes every step slower.
    for settings in (on_device, adapted, on_device | adapted, freed, freed | adapted):
        yield _smallest_fix(request, settings)
    for context in _halved_contexts(request.context_length):
        for settings in ({}, freed | adapted):
            yield _smallest_fix(request, settings | {"cluster.context_length": context})
    if lay_out(request).placement.engine_gpus:
        yield _smallest_fix(request, freed | {"cluster.engine_gpus": 0})


def _list_default_values(request: PlanRequest) -> dict[str, Any]:
    """Return the default values of the settings that the job has changed. Only settings in FREED are included."""
    cluster, defaults = request.job.cluster, ClusterSpec()
    values = {name: getattr(defaults, name) for name in FREED}
    return {f"cluster.{name}": value for name, value in values.items() if getattr(cluster, name) != value}


def _lora_setting(request: PlanRequest) -> dict[str, Any]:
    """Return the setting that enables LoRA, or {} if LoRA is not supported or was already tried."""
    lora, uses_gpus = request.job.optimizer_settings.lora, lay_out(request).placement.engine_gpus > 0
    if not request.can_use_lora or isinstance(lora, LoraSpec) or (lora == "auto" and uses_gpus):
        return {}
    return {f"method.{request.job.method.type}.algorithm.lora": LoraSpec()}


def _smallest_fix(request: PlanRequest, settings: dict[str, Any]) -> list[PlanFix]:
    """Return a list with the smallest sufficient fix; empty if all `settings` together do not make the job fit.

    The fix leaves out the `settings` that are not necessary.
    """
    if not settings or not _fits(request, PlanFix(settings)):
        return []
    for path in list(settings):
        fewer = {other: value for other, value in settings.items() if other != path}
        if _fits(request, PlanFix(fewer)):
            settings = fewer
    return [PlanFix(settings)]


def _halved_contexts(number: int) -> list[int]:
    found = []
    while (number := number // 2) >= MIN_CONTEXT:
        found.append(number)
    return found


def _fits(request: PlanRequest, fix: PlanFix) -> bool:
    return lay_out(fix.apply(request), max_tries=MAX_TRIES).fits


def _node_fixes(request: PlanRequest) -> Iterator[PlanFix]:
    """Yield fixes that add copies of the current nodes, fewest nodes first."""
    kinds = {replace(node, name=""): node for node in reversed(request.nodes)}
    for count, node in product(MORE_NODES, list(reversed(kinds.values()))[:MAX_KINDS]):
        yield PlanFix(node=node, count=count)


def _node_and_setting_fix(request: PlanRequest) -> PlanFix | None:
    settings = _list_default_values(request) | _lora_setting(request)
    for fix in _node_fixes(request) if settings else ():
        if found := _smallest_fix(fix.apply(request), settings):
            return replace(fix, settings=found[0].settings)
    return None


def plan_cluster(request: PlanRequest, *, fewest_gpus: bool = False) -> ClusterPlan:
    """Return the layout of a job on its nodes.

    If the job does not fit, the `fix` of each problem lists all fixes that were found. Any one of these fixes makes the
    job fit.
    """
    plan = lay_out(request, fewest_gpus=fewest_gpus)
    if plan.fits:
        return plan
    fix = "; or ".join(map(str, find_fixes(request))) or NONE_FOUND

    def with_fix(problems: Sequence[Problem]) -> tuple[Problem, ...]:
        return tuple(replace(problem, fix=fix) for problem in problems)

    return replace(
        plan,
        resource_problems=with_fix(plan.resource_problems),
        setting_problems=with_fix(plan.setting_problems),
        memory_problems=with_fix(plan.memory_problems),
    )


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """Assumed speed of a GPU or CPU core: arithmetic operations and bytes read from memory, per second."""

    operations_per_s: float
    read_bytes_per_s: float


GPU = DeviceSpeed(0.3 * 989e12, 0.6 * 3.35e12)
"""An H100 at 30 % of its peak throughput and 60 % of its memory bandwidth."""
CORE = DeviceSpeed(100e9, 10e9)
SYNC_BYTES_PER_S = 2e9
MOVE_BYTES_PER_S = 2 / (0.055 + 0.022) * 1e9
"""Mean speed of offloading and reloading, between a GPU and page-locked host memory.

Measured with a learner rank of 3.9 GB on an NVIDIA H100, 2026-11-27. A rank's first offloading takes another 0.6 s/GB
for page-locking.
"""
TOOLS_S = 10.0
"""Assumed time that a step waits for tools and graders. It is counted once, because rollouts wait concurrently."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Estimated seconds of a training step (`step_s`), and of the update in this step (`update_s`); never negative."""

    step_s: float
    update_s: float


def estimate_step(request: PlanRequest, plan: ClusterPlan) -> StepCost | None:
    """Return the estimated time of a training step with this layout; None without a model or a learner.

    The estimate is not calibrated on GPUs, so plans do not show it. It is used only for warnings, and to estimate how
    long it takes to stop a run. `agent-rft ready` and `agent-rft train` measure the real times.
    """
    job, model, placement = request.job, request.model, plan.placement
    if model is None or not placement.learner_ranks:
        return None
    num_rows = count_rows(Path(job.training_file)) or DEFAULT_ROWS
    numbers, _ = resolve_plan(job.with_adapter(placement.lora), num_rows, model.num_parameters)
    sampled = 0
    length = request.context_length // 2
    if job.method.type == "reinforcement":
        sampled = min(request.context_length // 2, job.reinforcement.limits.max_completion_tokens // 2)
        length = 2 * sampled
    update_s = numbers.rollouts_per_step * length * estimate_token_s(job, model, placement)
    if job.method.type != "reinforcement":
        return StepCost(update_s, update_s)
    sampling_s = _sampling_s(request, plan, model, numbers.rollouts_per_step / placement.engines, sampled)
    sync_s = model.count_trained(placement.lora) * placement.bytes_per_weight / SYNC_BYTES_PER_S
    offloaded = sum(
        place.memory.host.get("offloaded", 0) for place in plan.assignments if place.index == 0 and place.memory
    )
    turns_s = 2 * offloaded / MOVE_BYTES_PER_S  # offloading and reloading
    overlaps = not placement.takes_turns and job.reinforcement.algorithm.max_staleness > 0
    both_s = max(sampling_s, update_s) if overlaps else sampling_s + update_s
    return StepCost(both_s + sync_s + turns_s, update_s)


def _sampling_s(request: PlanRequest, plan: ClusterPlan, model: ModelShape, rollouts: float, sampled: int) -> float:
    """Return the estimated seconds that one engine needs to sample `rollouts` rollouts of `sampled` tokens."""
    placement = plan.placement
    rates, devices = GPU if placement.rank_gpus else CORE, placement.engine_gpus or placement.engine_cores
    sequences = next(place.memory.num_sequences for place in plan.assignments if place.memory is not None) or 1.0
    length = 2 * sampled
    at_a_time = min(placement.max_num_seqs, max(1.0, sequences * request.context_length / max(1, length)))
    reads_s = model.num_parameters * placement.bytes_per_weight / (rates.read_bytes_per_s * devices)
    operations_s = 2 * model.active_parameters / (rates.operations_per_s * devices)
    return sampled * max(1.0, rollouts / at_a_time) * reads_s + rollouts * length * operations_s + TOOLS_S


def estimate_token_s(job: JobSpec, model: ModelShape, placement: Placement) -> float:
    """Return the estimated seconds to train on one token if all ranks work in parallel; never negative.

    The estimate is not calibrated on GPUs: see `estimate_step`.
    """
    rates = GPU if placement.rank_gpus else CORE
    speed = rates.operations_per_s * placement.learner_ranks * (1 if placement.rank_gpus else placement.rank_cores)
    per_token = (8 if placement.rank_gpus else 6) + (2 if job.method.type == "reinforcement" else 0)
    if placement.lora is not None:
        per_token -= 2  # frozen weights have no gradients
    return per_token * model.active_parameters / speed


def count_rows(path: Path) -> int:
    """Count the non-blank lines of a file; 0 if it cannot be read."""
    try:
        with path.open("rb") as file:
            return sum(1 for line in file if line.strip())
    except OSError:
        return 0


CHECKPOINT_BYTES_PER_PARAMETER = STATE_BYTES + 4
"""Bytes per parameter in a checkpoint: optimizer state, plus 4 bytes for a float32 weight.

A bfloat16 weight takes only 2 bytes.
"""
ASSUMED_WRITE_BYTES_PER_S = 500e6
PROMPT_S = 30.0
"""Usual time limit in seconds for stopping a run. After this time, Kubernetes or a preemption kills the run."""
SPARE_S = 20.0
"""Seconds allowed for ending the actors and writing the report."""
TO_KILL_S = 30
"""Seconds added to a pod's grace period, so that Ray's processes can end after the run has ended."""


def interval_warnings(interval: CheckpointInterval, checkpoint_s: float, step_s: float | None) -> Iterator[Problem]:
    """Yield warnings if writing a checkpoint takes longer than the checkpoint interval.

    Args:
        interval: Checkpoint interval of the job.
        checkpoint_s: Seconds to write a checkpoint.
        step_s: Seconds of a step; None if unknown.
    """
    setting, fitting = "cluster.checkpoint_interval", interval.extend_for_writes(checkpoint_s)
    takes = f"writing a checkpoint takes about {checkpoint_s:.0f} s"
    if fitting.minutes != interval.minutes:
        apart = f"checkpoints will be {fitting.minutes:.1f} minutes apart"
        message = f"{takes}, which is longer than the interval of {interval.minutes:g} minutes, so {apart}"
        fix = "use a faster disk for the run folder, or train with LoRA"
        yield Problem("slow_checkpoints", f"{setting}.minutes", message, fix)
    if interval.steps is not None and step_s and checkpoint_s > interval.steps * step_s:
        takes_step = f"about {step_s:.0f} s"
        steps = f"a step ({takes_step})" if interval.steps == 1 else f"{interval.steps} steps ({takes_step} each)"
        message = f"{takes}, which is longer than {steps}, so training will wait for each checkpoint"
        fix = f"set it to {math.ceil(2 * checkpoint_s / step_s)} or more, or to null"
        yield Problem("slow_checkpoints", f"{setting}.steps", message, fix)


@dataclass(frozen=True, slots=True)
class StopTime:
    """Time needed to stop a run. The run finishes an update (`update_s`, 0 if unknown), then writes a checkpoint."""

    num_parameters: int
    write_bytes_per_s: float
    update_s: float = 0.0

    @property
    def checkpoint_bytes(self) -> int:
        return self.num_parameters * CHECKPOINT_BYTES_PER_PARAMETER

    @property
    def checkpoint_s(self) -> float:
        return self.checkpoint_bytes / self.write_bytes_per_s

    @property
    def wait_s(self) -> int:
        """Value in seconds for Ray's setting RAY_JOB_STOP_WAIT_TIME_S, rounded up to a multiple of ten."""
        return math.ceil((self.update_s + self.checkpoint_s + SPARE_S) / 10) * 10

    @property
    def grace_s(self) -> int:
        """Value in seconds for the Kubernetes pod setting terminationGracePeriodSeconds."""
        return self.wait_s + TO_KILL_S
