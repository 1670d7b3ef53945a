"""Full check of a job before a run starts.

The check returns the data that the run needs, or raises one error that lists all problems.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_rft.actors.grading.grader_factory import iterate_graders
from agent_rft.actors.grading.python_nodes import check_sandbox
from agent_rft.chat.dialect import Dialect
from agent_rft.chat.model_card import ModelCard
from agent_rft.chat.renderer import Renderer
from agent_rft.cluster.checks.disk_space import FreeSpace, check_runs_folder, check_space, measure_write_speed
from agent_rft.cluster.checks.dry_run import dry_run_problems
from agent_rft.cluster.checks.endpoint_checks import check_early_stop
from agent_rft.cluster.checks.job_advice import find_advice
from agent_rft.cluster.checks.limit_checks import check_resource_limits
from agent_rft.cluster.checks.model_checks.dialect_check import SWITCHES, check_grammar
from agent_rft.cluster.checks.model_checks.model_check import read_model
from agent_rft.cluster.checks.model_checks.tool_call_check import check_calls_in_rows, tools_warning
from agent_rft.cluster.checks.offline_checks import check_method, make_invalid_job
from agent_rft.cluster.checks.resumption.recorded_run import RecordedRun, digest_job
from agent_rft.cluster.checks.resumption.resume_compat import SettingDifference
from agent_rft.cluster.checks.row_checks import check_conversations, check_row_lengths, list_rows, read_files
from agent_rft.cluster.planning.cluster_plan import (
    CHECKPOINT_BYTES_PER_PARAMETER,
    PROMPT_S,
    StepCost,
    StopTime,
    estimate_step,
    interval_warnings,
    plan_cluster,
)
from agent_rft.cluster.planning.layout import ClusterPlan, lay_out_on_free_nodes
from agent_rft.cluster.planning.model_folder import ModelFolder, context_problems, resolve_context
from agent_rft.cluster.planning.placement import Placement, PlanRequest, RecordedLayout, format_bytes
from agent_rft.cluster.planning.plan_nodes import Node, add_joining_nodes
from agent_rft.errors import GraderFailed, Problem, UserError
from agent_rft.events import SettingChosen
from agent_rft.problems import is_warning, stops_accepted_job
from agent_rft.spec.graders import PythonGrader
from agent_rft.spec.job import JobSpec, Reinforcement
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, OperatorConfig
from agent_rft.spec.step_plan import StepPlan, resolve_plan
from agent_rft.types import Task

NODE_FIX = "add a node with the Ray resource python_grader, or set python_grader_nodes: false in the configuration"


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """Job that passed the check, with the data that the check read and the values that it resolved.

    Attributes:
        job: The job. Its `model` is a local folder.
        choices: Values to which `auto` was resolved. Empty for a resumed run, which keeps its recorded values.
        setting_changes: Settings of a resumed run whose values differ from those at its first start.
        layout_changes: Layout settings of a resumed run that changed, because the recorded values no longer fit.
        warnings: Warnings to print.
        stop_time: Time needed to stop the run, estimated from the disk speed; None if it cannot be estimated.
        request: Planning request from which the layout was chosen; None if the layout must not change.
    """

    job: JobSpec
    plan: StepPlan
    cluster: ClusterPlan
    context_length: int
    renderer: Renderer
    tasks: list[Task]
    validation: list[Task] = field(default_factory=list)
    test: list[Task] = field(default_factory=list)
    choices: tuple[SettingChosen, ...] = ()
    setting_changes: tuple[SettingDifference, ...] = ()
    layout_changes: tuple[SettingDifference, ...] = ()
    warnings: tuple[str, ...] = ()
    stop_time: StopTime | None = None
    request: PlanRequest | None = None

    @property
    def is_mixture(self) -> bool:
        """Whether the model to train is a mixture of experts."""
        return self.request is not None and self.request.model is not None and self.request.model.expert_parameters > 0

    @property
    def dialect(self) -> Dialect:
        """Format in which the model writes conversations."""
        return self.renderer.dialect

    @property
    def placement(self) -> Placement:
        return self.cluster.placement

    def values_to_record(self) -> dict[str, Any]:
        """Return the values that a run folder records for resuming the run, in addition to the job and the plan."""
        return {
            "context_length": self.context_length,
            "layout": asdict(RecordedLayout.from_placement(self.placement)),
            "digests": digest_job(self.job),
        }

    def copy_for_grading(self, model: Path) -> CheckedJob:
        """Return a copy of this job that does not train, but grades the checkpoint in the folder `model`."""
        cluster = replace(self.cluster, placement=self.placement.without_learner())
        return replace(self, job=self.job.model_copy(update={"model": str(model)}), cluster=cluster, request=None)

    @property
    def can_change_layout(self) -> bool:
        """Whether the layout may still change before GPUs are reserved."""
        on_gpus = self.placement.engine_gpus > 0 or self.placement.rank_gpus > 0
        return self.request is not None and on_gpus and not self.placement.has_shared_engines

    def lay_out_again(self, nodes: Sequence[Node], operator: OperatorConfig) -> CheckedJob | None:
        """Return the job with a new layout on the GPUs that are currently free on the live `nodes`.

        The `choices` of the returned job contain only the choices of the new layout. If LoRA was chosen before, the new
        layout uses LoRA too, because the disk space was checked only for LoRA's small checkpoints.

        Returns:
            The job with the new layout. None if the layout must not change, if the best layout is the current one, if
            the job does not fit on the free GPUs, or if the new layout exceeds the operator's limits.
        """
        if self.request is None or not self.can_change_layout:
            return None
        request = replace(self.request, nodes=tuple(_expected_nodes(nodes, operator)))
        if self.placement.lora is not None:
            request = replace(request, job=request.job.with_adapter(self.placement.lora))
        cluster = lay_out_on_free_nodes(request)
        if cluster is None or cluster.placement == self.placement:
            return None
        if check_resource_limits(operator.jobs, cluster.placement.bundles):
            return None
        job, plan, choices = self.job.with_adapter(cluster.placement.lora), self.plan, tuple[SettingChosen, ...]()
        if cluster.placement.lora != self.placement.lora and request.model is not None:  # has another learning rate
            plan, choices = resolve_plan(job, len(self.tasks), request.model.num_parameters)
        return replace(self, job=job, plan=plan, cluster=cluster, choices=(*choices, *cluster.choices))


async def check_job(
    job: JobSpec,
    folder: ModelFolder,
    nodes: Sequence[Node],
    runs: Path,
    operator: OperatorConfig = DEFAULT_CONFIG,
    *,
    dry_run: bool = True,
    trains: bool = True,
    known_problems: Sequence[Problem] = (),
    free_space: FreeSpace | None = None,
    recorded_run: RecordedRun | None = None,
    was_accepted: bool = False,
) -> CheckedJob:
    """Check a job and return the data that a run needs.

    Args:
        job: The job.
        folder: Folder of the job's model.
        nodes: Live nodes of the cluster.
        runs: Folder of the run folders.
        operator: The operator's configuration.
        dry_run: Whether to call each tool and grader once. Skipped if `method` has problems.
        trains: Whether the run trains. Otherwise it only grades.
        known_problems: Problems that were found earlier. They come first in the list of problems.
        free_space: Free disk space and shared memory; None to measure them.
        recorded_run: Record of the run to resume; None for a new run.
        was_accepted: Whether the job passed an earlier check. If so, some problems become warnings.

    Raises:
        InvalidJob: The job has problems; lists all of them.
    """
    problems = list(known_problems)
    if recorded_run is None:
        job = apply_model_card(job, folder)
    supervised = job.method.type == "supervised"
    files, bad = read_files(job)
    problems += bad
    tasks, rows = files["training_file"], list_rows(job, files)
    model, bad = read_model(job, folder, trains=trains)
    if model is not None:
        model, unread = check_calls_in_rows(model, job, rows)
        bad += unread
    loaded = model
    if not was_accepted and bad:
        model = None  # further problems would only be consequences
    context_length = resolve_context(job, None if model is None else model.max_context)
    recorded = RecordedLayout() if recorded_run is None else recorded_run.layout
    problems += _node_problems(job, nodes, recorded, operator)
    nodes = _expected_nodes(nodes, operator)
    request = PlanRequest(
        job,
        tuple(nodes),
        None if model is None else model.shape,
        context_length,
        trains=trains,
        recorded_layout=recorded,
        adapter=None if model is None else folder.lora,
        can_use_lora=model is None or model.can_use_lora,
        max_gpus=operator.jobs.max_gpus,
    )
    cluster = plan_cluster(request)
    job = job.with_adapter(cluster.placement.lora)
    plan, choices = None, tuple[SettingChosen, ...]()
    if tasks and loaded is not None:
        plan, choices = resolve_plan(job, len(tasks), loaded.shape.num_parameters)
        if recorded_run is not None:
            plan = recorded_run.recorded_plan(job, plan)
    problems += bad
    if not supervised:
        problems += check_method(job.reinforcement, rows, operator)
        problems += check_early_stop(job)
        problems += await _sandbox_problems(job.reinforcement, operator)
        problems += _engine_problems(job)
    elif model is not None:
        problems += check_conversations(rows)
    if model is not None:
        problems += context_problems(context_length, model.max_context)
        problems += await check_row_lengths(
            rows,
            model.renderer,
            context_length,
            conversations=supervised,
            tools_in_prompt=job.model_options.tools_in_prompt,
        )
    if model is not None and not supervised:
        calls = any(row.task.tools for row in rows)
        problems += check_grammar(job.reinforcement, model.renderer.family, calls=calls)
    waits = bool(cluster.resource_problems) and operator.wait_for_nodes_s > 0 and not operator.nodes
    lacking = [] if waits else cluster.resource_problems
    problems += [*cluster.problems, *lacking, *check_resource_limits(operator.jobs, cluster.placement.bundles)]
    problems += check_runs_folder(runs)
    if model is not None and plan is not None:
        # Engines and ranks will run on the nodes for which the job waits.
        space, one_node = free_space or FreeSpace.measure(runs), len(nodes) < 2 and not waits
        parameters = model.shape.count_trained(cluster.placement.lora)
        written = 0 if recorded_run is None else recorded_run.num_checkpoints
        problems += check_space(
            parameters,
            plan,
            cluster.placement,
            runs,
            space,
            one_node=one_node,
            num_written=written,
            num_uploading=int(operator.checkpoint_store is not None),
        )
    warned = [problem for problem in problems if is_warning(problem.code)]
    problems = [problem for problem in problems if not is_warning(problem.code)]
    tolerated = [problem for problem in problems if was_accepted and not stops_accepted_job(problem.code)]
    wrong = [problem for problem in problems if not was_accepted or stops_accepted_job(problem.code)]
    if dry_run and not supervised and not any(problem.field.startswith("method.") for problem in wrong):
        bad_lines = {(p.file, p.line) for p in problems}
        good = [row.task for row in rows if (row.file, row.line) not in bad_lines]
        tried = await dry_run_problems(job.reinforcement, good, operator) if good else []
        warned += [problem for problem in tried if is_warning(problem.code)]
        wrong += [problem for problem in tried if not is_warning(problem.code)]
    if wrong or model is None or plan is None:
        raise make_invalid_job(wrong or tolerated)
    stop = _measure_stop_time(model.shape.count_trained(cluster.placement.lora), runs) if trains else None
    return CheckedJob(
        job=job.model_copy(update={"model": str(folder.path)}),
        plan=plan,
        cluster=cluster,
        context_length=context_length,
        renderer=model.renderer,
        tasks=tasks,
        validation=files["validation_file"],
        test=files["test_file"],
        choices=(*choices, *cluster.choices) if recorded_run is None else (),
        setting_changes=() if recorded_run is None else recorded_run.list_changes(job),
        layout_changes=() if recorded_run is None else recorded_run.list_layout_changes(job, cluster.placement),
        warnings=(
            *(() if recorded_run is None else recorded_run.warnings),
            *map(_to_warning, make_invalid_job(tolerated).problems),
            *(f"{lack.message}; the job waits until nodes join" for lack in cluster.resource_problems),
            *(f"{warning.message}; {warning.fix}" for warning in cluster.warnings),
            *(
                f"{warning.location}: {warning.message}; {warning.fix} [{warning.code}]"
                for warning in make_invalid_job(warned).problems
            ),
            *(() if stop is None or stop.checkpoint_s <= PROMPT_S else (_long_stop_warning(stop),)),
            *(() if stop is None else _slow_checkpoint_warnings(stop, estimate_step(request, cluster), job)),
            *filter(None, (tools_warning(model),)),
            *find_advice(job, plan, model.renderer, files),
        ),
        stop_time=stop,
        request=request,
    )


def apply_model_card(job: JobSpec, folder: ModelFolder) -> JobSpec:
    """Return the job with unset `model_options` filled in from the model card of its model."""
    card = folder.card
    if not isinstance(card, ModelCard):  # the card is missing, or the check of the model reports it
        return job
    effort = job.method.reinforcement and job.reinforcement.hyperparameters.reasoning_effort
    if effort not in (None, "default"):  # the effort sets these template arguments
        card = card.drop_arguments(SWITCHES)
    return job.model_copy(update={"model_options": card.complete_options(job.model_options)})


def _expected_nodes(nodes: Sequence[Node], operator: OperatorConfig) -> Sequence[Node]:
    """Return the live nodes and the nodes that join on demand."""
    return add_joining_nodes(nodes, operator.nodes) if operator.wait_for_nodes_s else nodes


def _node_problems(
    job: JobSpec, nodes: Sequence[Node], recorded: RecordedLayout, operator: OperatorConfig
) -> list[Problem]:
    """Return a problem if a layout cannot be chosen yet, because no node with GPUs has joined."""
    is_open = job.cluster.engine_gpus == "auto" and recorded.engine_gpus is None
    if not is_open or operator.nodes or not operator.wait_for_nodes_s or any(node.gpus for node in nodes):
        return []
    message = "auto cannot choose a layout: nodes join on demand, and no node with GPUs has joined yet"
    fix = "set it to 1 (or to 0 to use CPUs), or ask the operator to list the cluster's nodes under `nodes`"
    return [Problem("unknown_nodes", "cluster.engine_gpus", message, fix)]


def _measure_stop_time(num_parameters: int, runs: Path) -> StopTime | None:
    speed = measure_write_speed(runs, num_parameters * CHECKPOINT_BYTES_PER_PARAMETER)
    return None if speed is None else StopTime(num_parameters, speed)


def _long_stop_warning(stop: StopTime) -> str:
    speed = f"{format_bytes(stop.write_bytes_per_s)} per second, measured"
    return (
        f"stopping this run takes longer than {PROMPT_S:g} s: the run completes the update in progress, then needs "
        f"about {stop.checkpoint_s:.0f} s to write a checkpoint of {format_bytes(stop.checkpoint_bytes)} ({speed}); "
        "do not kill the run before the checkpoint is complete"
    )


def _slow_checkpoint_warnings(stop: StopTime, cost: StepCost | None, job: JobSpec) -> Iterator[str]:
    step_s = None if cost is None else cost.step_s
    for warning in interval_warnings(job.cluster.checkpoint_interval, stop.checkpoint_s, step_s):
        yield f"{warning.field}: {warning.message}; {warning.fix} [{warning.code}]"


def _to_warning(problem: Problem) -> str:
    return f"{problem.location}: {problem.message}; a new job would be refused, but this job continues"


async def _sandbox_problems(
    reinforcement: Reinforcement,
    operator: OperatorConfig,
    check: Callable[[OperatorConfig], Awaitable[None]] = check_sandbox,
) -> list[Problem]:
    """Return a problem if sandboxes do not work where python graders will run."""
    python = [field for field, spec in iterate_graders(reinforcement) if isinstance(spec, PythonGrader)]
    if not python:
        return []
    try:
        await check(operator)
    except UserError as error:
        return [Problem("no_sandbox", python[0], error.problem, error.fix)]
    except GraderFailed as error:
        message = f"no node can run python graders: {error.message}"
        return [Problem("no_free_resources", python[0], message, NODE_FIX)]
    return []


def _engine_problems(job: JobSpec) -> list[Problem]:
    """Return a problem if vLLM is not installed."""
    if find_spec("vllm") is None:
        fix = "run `pip install 'agent-rft[cpu]'`, or with GPUs `pip install 'agent-rft[gpu]'`"
        return [Problem("no_engine", "cluster", "vLLM, which runs the rollouts, is not installed", fix)]
    return []
