"""Configurations of the actors, and the plan that is printed. Both are derived from a prepared job."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from agent_rft.actors.engine.engine_config import EngineConfig
from agent_rft.actors.engine.shared.shared_engine import SharedConfig
from agent_rft.actors.learner.learner_group import LearnerGroup
from agent_rft.actors.rollout.episode import EpisodeSpec
from agent_rft.actors.rollout.rollout_worker import WorkerConfig
from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress
from agent_rft.actors.weights.broadcast_sync import BroadcastSync
from agent_rft.actors.weights.weight_sync import WeightSync
from agent_rft.chat.model_card import ModelCard
from agent_rft.chat.model_files import ModelFiles
from agent_rft.cluster.checks.check_job import CheckedJob
from agent_rft.cluster.planning.cluster_plan import estimate_token_s
from agent_rft.cluster.planning.placement import format_bytes
from agent_rft.cluster.planning.plan_view import describe_sharing
from agent_rft.spec.job import AlgorithmSpec
from agent_rft.spec.operator.operator_config import TraceSettings
from agent_rft.trainer.learner.adapter import AdapterConfig
from agent_rft.trainer.learner.rank_config import LearnerConfig


def worker_config(
    prepared: CheckedJob,
    dispatchers: Sequence[Any],
    graders: Any,
    metrics: MetricsAddress | None,
    traces: TraceSettings | None = None,
) -> WorkerConfig:
    """Return the configuration of every rollout worker; `dispatchers` and `graders` are Ray actors."""
    job, reinforcement = prepared.job, prepared.job.reinforcement
    return WorkerConfig(
        engine=engine_config(prepared, log_stats=metrics is not None),
        episode=EpisodeSpec(
            seed=f"{job.seed}",
            limits=reinforcement.limits,
            reward=reinforcement.reward,
            max_steps=reinforcement.max_episode_steps,
            context_length=prepared.context_length,
            max_reasoning_tokens=prepared.plan.max_reasoning_tokens,
            response_schema=reinforcement.response_format,
            model=Path(job.model).name,
        ),
        dialect=prepared.dialect,
        dispatchers=dispatchers,
        graders=graders,
        metrics=metrics,
        traces=traces,
    )


def engine_config(prepared: CheckedJob, *, log_stats: bool = False) -> EngineConfig:
    """Return the engine configuration of a job, without the settings for shared engines."""
    job, lora, method = prepared.job, prepared.job.optimizer_settings.adapter, prepared.job.method.reinforcement
    replays = method is not None and method.algorithm.router_replay
    return EngineConfig(
        model=job.model,
        dtype=prepared.placement.dtype,
        context_length=prepared.context_length,
        max_num_seqs=prepared.placement.max_num_seqs,
        seed=job.seed,
        gpus=prepared.placement.engine_gpus,
        gpu_share=prepared.placement.gpu_share,
        can_offload=prepared.placement.takes_turns,
        reasoning_delimiters=prepared.dialect.reasoning_delimiters,
        log_stats=log_stats,
        lora=None if lora is None else AdapterConfig(lora.rank, lora.alpha, lora.names),
        reports_experts=replays and prepared.placement.learner_ranks > 0,
    )


def shared_engine_configs(prepared: CheckedJob) -> list[SharedConfig]:
    """Return the configurations of the engines that the job shares with other jobs; empty if there are none.

    Raises:
        UserError: The job's model is an adapter of an unsupported kind.
    """
    placement, own = prepared.placement, engine_config(prepared)
    if not placement.has_shared_engines or own.lora is None:
        return []
    return [SharedConfig.for_job(own, own.lora, placement.engine_cores, i) for i in range(placement.engines)]


def learner_config(prepared: CheckedJob) -> LearnerConfig:
    """Return the configuration of every learner rank."""
    job, plan = prepared.job, prepared.plan
    supervised = job.method.type == "supervised"
    optimizer = job.optimizer_settings
    model = None if prepared.request is None else prepared.request.model
    return LearnerConfig(
        model=Path(job.model),
        steps=plan.steps,
        learning_rate=plan.learning_rate,
        lr_schedule=optimizer.lr_schedule,
        warm_up_steps=None if optimizer.warm_up_steps == "auto" else optimizer.warm_up_steps,
        algorithm=AlgorithmSpec(updates_per_batch=plan.updates_per_batch)
        if supervised
        else job.reinforcement.algorithm,
        method=job.method.type,
        dtype=prepared.placement.dtype,
        zero_stage=prepared.placement.zero_stage,
        micro_batch_tokens=prepared.placement.micro_batch_tokens,
        rank_cores=prepared.placement.rank_cores,
        on_gpu=prepared.placement.rank_gpus > 0,
        files=model_files(prepared),
        stop_token_ids=tuple(prepared.renderer.stop_tokens),
        offload=prepared.placement.offload,
        lora=optimizer.adapter,
        seed=job.seed,
        assumed_token_s=0.0 if model is None else estimate_token_s(job, model, prepared.placement),
    )


def model_files(prepared: CheckedJob) -> ModelFiles:
    """Return the conversation settings to write into each checkpoint: model card, chat template and stop tokens."""
    dialect, tokenizer = prepared.dialect, prepared.renderer.tokenizer
    ids = [tokenizer.eos_token_id, *map(tokenizer.backend_tokenizer.token_to_id, dialect.stop_tokens)]
    return ModelFiles(
        ModelCard.from_job(
            dialect, prepared.job.model_options, prepared.renderer.template, prepared.job.optimizer_settings.adapter
        ),
        dialect.chat_template,
        tuple(dict.fromkeys(id for id in ids if id is not None)),
    )


def create_weight_sync(prepared: CheckedJob, learner: LearnerGroup) -> WeightSync:
    """Create the weight sync that `cluster.weight_transport` selects. Adapters always use Ray's object store."""
    adapts = prepared.job.reinforcement.algorithm.adapter is not None
    if prepared.job.cluster.weight_transport == "broadcast" and not adapts:
        return BroadcastSync(learner, max(1, prepared.placement.engine_gpus))
    return WeightSync(learner)


def check_spinner() -> Status:
    """Return a spinner to show while the job is checked. It is visible only on a terminal."""
    return Console(stderr=True).status("checking the job: its files, model, endpoints and the cluster")


def print_plan(console: Console, prepared: CheckedJob) -> None:
    """Print the plan of a resolved job, before any actor starts."""
    placement = prepared.placement
    show = partial(console.print, highlight=False, soft_wrap=True)
    show(f"[bold]{escape(prepared.job.model)}[/]")
    if placement.learner_ranks:
        _print_training_plan(console, prepared)
    parts = (
        (
            "shared engine" if placement.has_shared_engines else "engine",
            placement.engines,
            placement.engine_cores,
            placement.engine_gpus,
        ),
        ("learner rank", placement.learner_ranks, placement.rank_cores, placement.rank_gpus),
    )
    resources = [
        f"{_format_count(count, name)} x {_format_count(cores, 'core')}"
        + (f" and {_format_count(gpus, 'GPU')}" if gpus else "")
        for name, count, cores, gpus in parts
        if count
    ]
    resources += [placement.dtype, f"context {prepared.context_length} tokens"]
    if placement.learner_ranks:
        resources.append(f"micro-batches of {placement.micro_batch_tokens} tokens")
    show(f"  {', '.join(resources)}")
    if (how := describe_sharing(placement)) is not None:
        show(f"  {how}")
    for place in prepared.cluster.assignments:
        if place.index == 0 and place.memory is not None:
            on_gpu = f"{format_bytes(place.memory.gpu_bytes)} per GPU and " if place.memory.gpu else ""
            show(f"  {place.role}: about {on_gpu}{format_bytes(place.memory.host_bytes)} of memory")
    for change in (*prepared.setting_changes, *prepared.layout_changes):
        show(
            f"  {escape(change.setting)} is {escape(change.new)}; the run began with {escape(change.old)}", style="dim"
        )
    for warning in prepared.warnings:
        show(f"[yellow]warning[/] {escape(warning)}")


def _print_training_plan(console: Console, prepared: CheckedJob) -> None:
    plan = prepared.plan
    rows = f"{_format_count(plan.num_rows, 'row')} x {_format_count(plan.n_epochs, 'epoch')}"
    show = partial(console.print, highlight=False, soft_wrap=True)
    steps = f"{_format_count(plan.steps, 'step')} of {_format_count(plan.batch_size, 'row')}"
    show(f"  {rows}: {steps}, learning rate {plan.learning_rate:g}")
    for choice in prepared.choices:
        show(f"  {choice}", style="dim")
    if interval := str(prepared.job.cluster.checkpoint_interval):
        show(f"  a checkpoint every {interval}, and one after each validation")
    if (stop := prepared.stop_time) is not None:
        took = f"about {stop.checkpoint_s:.0f} s" if stop.checkpoint_s >= 1 else "less than a second"
        show(
            f"  a checkpoint needs {format_bytes(stop.checkpoint_bytes)}; writing it takes {took} at the measured "
            "disk speed"
        )
    if prepared.job.method.type == "reinforcement":
        limits = prepared.job.reinforcement.limits
        every = "step" if plan.eval_interval == 1 else f"{plan.eval_interval} steps"
        validation = f"{_format_count(len(prepared.validation), 'validation row')} every {every}"
        test = f"{_format_count(len(prepared.test), 'test row')} before and after training"
        show(
            f"  {_format_count(plan.group_size, 'rollout')} per row, {plan.rollouts_per_step} per step, at most "
            f"{plan.rollouts_per_step * limits.max_completion_tokens:,} sampled tokens per step; "
            f"{_format_count(plan.updates_per_batch, 'update')} per step; "
            f"{validation if prepared.validation else 'no validation'}; {test if prepared.test else 'no test'}"
        )


def _format_count(number: float, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
