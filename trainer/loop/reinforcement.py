"""The asynchronous loop: tasks -> graded groups -> advantages -> update -> new weights, while generation goes on.

Knows only protocols. Generation for later steps runs while the learner works; `Buffer` bounds the staleness.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from trainer.algorithm.advantage import advantages, signal_of
from trainer.data.rows import RowOrder
from trainer.errors import Halted, first_error
from trainer.loop.alarms import Alarms
from trainer.loop.buffer import Batch, Buffer
from trainer.loop.checkpoint import Checkpoints, LoopState, num_bytes
from trainer.loop.evaluate import Evaluation, evaluate
from trainer.metrics import rollout_metrics, slow_rows_ratio, step_times
from trainer.protocols import EventSink, Learner, Rollouts
from trainer.spec.job import AlgorithmSpec, Plan
from trainer.types import Group, GroupRequest, SyncReport, Task, TrainSequence

T = TypeVar("T")

STARVED_BATCHES_ALLOWED = 3
GAP_WARNS_AT, GAP_HALTS_AT = 0.1, 0.5
"""Mean absolute log-probability difference, in nats, between engine and learner on equal weights. float32 gives 1e-6
and bfloat16 about 0.02; above 0.1 something is off, at 0.5 the importance weights mean nothing."""
RATIO_HALTS_AT = 4.0


@dataclass(frozen=True, slots=True)
class LoopConfig:
    plan: Plan
    algorithm: AlgorithmSpec
    seed: int
    pass_threshold: float
    job_digest: str


class Loop:
    """One job's training. `run` may be called once."""

    def __init__(
        self,
        config: LoopConfig,
        tasks: Sequence[Task],
        validation: Sequence[Task],
        rollouts: Rollouts,
        learner: Learner,
        checkpoints: Checkpoints,
        sink: EventSink,
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._validation = validation
        self._rollouts = rollouts
        self._learner = learner
        self._checkpoints = checkpoints
        self._sink = sink
        self._state = LoopState(0, 0, 0, [], 0, None, config.job_digest)
        plan, algorithm = config.plan, config.algorithm
        self._alarms = Alarms(plan.steps)
        self._buffer = Buffer(plan.batch_size, algorithm.max_staleness, plan.batch_size, self._judge)
        self._admitting = asyncio.Event()
        self._stopping = asyncio.Event()
        self._saved_step = 0
        self._begun = time.monotonic()

    @property
    def state(self) -> LoopState:
        return self._state

    async def resume(self, folder: Path, state: LoopState) -> None:
        """Take up a checkpoint: learner, engines, rows done."""
        await self._learner.load(folder)
        self._state, self._saved_step = state, state.step
        await self._rollouts.publish(state.version)
        self._sink.event("info", f"resumed at step {state.step} of {self._config.plan.steps}")

    def stop(self) -> None:
        """End after the update that is under way, with a checkpoint; an evaluation is broken off."""
        self._stopping.set()

    async def run(self) -> LoopState:
        """Train to the last step (or until `stop`).

        Raises:
            UserError: an endpoint refuses us.
            Halted: gradients, signal or engines can no longer be trusted.
        """
        if self._state.step == 0:
            await self._evaluate()
        self._admitting.set()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._admit(group))
                await self._steps()
                raise _StepsDone
        except ExceptionGroup as errors:
            _, failed = errors.split(_StepsDone)
            if failed is not None:
                raise first_error(failed) from errors
        if self._saved_step < self._state.step:
            await self._save(None, {})
        return self._state

    async def _steps(self) -> None:
        starved = 0
        while self._state.step < self._config.plan.steps and not self._stopping.is_set():
            begun = time.monotonic()
            batch = await self._next_batch()
            if batch is None:
                return
            if not batch.trained:
                starved += 1
                self._starved(batch, starved)
                continue
            starved = 0
            await self._step(batch, begun)

    async def _next_batch(self) -> Batch | None:
        """The next batch, or None where `stop` came first."""
        return await self._unless_stopped(self._buffer.next_batch())

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`, or None where `stop` came first; then `work` is cancelled."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            stopping.cancel()
            if working.cancel():
                await asyncio.wait({working})

    async def _step(self, batch: Batch, begun: float) -> None:
        state, times = self._state, {"time_wait_s": time.monotonic() - begun}
        sequences = self._sequences(batch)
        learning = time.monotonic()
        report = await self._learner.step(sequences, state.version)
        times["time_learn_s"] = time.monotonic() - learning
        version, sync = state.version, None
        if report.applied:
            version += 1
            sync = await self._rollouts.publish(version)
            times["time_sync_s"] = sync.total_s
        else:
            self._sink.event("warn", f"step {state.step + 1}: the gradient was not finite, the update was skipped")
        self._state = self._after(batch, version, int(report.metrics.get("trained_tokens", 0)))
        await self._buffer.published()
        self._sink.groups(f"step-{self._state.step:06d}", batch.all_groups)
        counts = await self._rollouts.counts()
        metrics = self._metrics(batch, state.version, sync, counts) | report.metrics | times
        metrics["update_applied"] = float(report.applied)
        self._guard(metrics)
        for alarm in self._alarms.look(metrics, [r for group in batch.all_groups for r in group.rollouts]):
            message = f"step {self._state.step}: {alarm.message}; look at {', '.join(alarm.traces)}"
            self._sink.event("warn", message, rule=alarm.rule, traces=alarm.traces)
        step, plan = self._state.step, self._config.plan
        if not self._stopping.is_set() and (step % plan.eval_interval == 0 or step == plan.steps):
            evaluating = time.monotonic()
            evaluation = await self._evaluate()
            metrics |= _validation_metrics(evaluation) | {"time_eval_s": time.monotonic() - evaluating}
            metrics |= await self._save(evaluation, metrics | step_times(begun, self._begun))
        self._sink.step(metrics | step_times(begun, self._begun))

    def _sequences(self, batch: Batch) -> list[TrainSequence]:
        sequences = []
        for group in batch.trained:
            values = advantages(self._config.algorithm.advantage, group.rewards)
            for rollout, advantage in zip(group.rollouts, values, strict=True):
                sequences.append(
                    TrainSequence(
                        rollout.token_ids, rollout.loss_mask, rollout.logprobs, rollout.versions, float(advantage)
                    )
                )
        return sequences

    def _after(self, batch: Batch, version: int, trained_tokens: int) -> LoopState:
        """The state once `batch` was trained: which rows of the newest epoch in it are done."""
        requests = [group.request for group in batch.all_groups]
        epoch = max(self._state.epoch, max(request.epoch for request in requests))
        done = set(self._state.rows_done) if epoch == self._state.epoch else set()
        done |= {request.task.row_id for request in requests if request.epoch == epoch}
        return replace(
            self._state,
            step=self._state.step + 1,
            version=version,
            epoch=epoch,
            rows_done=sorted(done),
            trained_tokens=self._state.trained_tokens + trained_tokens,
        )

    # -- admission -----------------------------------------------------------------------------------------------------

    async def _admit(self, group: asyncio.TaskGroup) -> None:
        """Start groups as the buffer allows. A group that fails ends the loop: its error is the user's or fatal."""
        plan, first = self._config.plan, self._state
        rows: Iterator[tuple[int, Task]] = iter(RowOrder(self._tasks, self._config.seed, first.epoch, first.rows_done))

        def needed() -> int:
            return (plan.steps - self._state.step) * plan.batch_size

        while True:
            await self._admitting.wait()
            index = await self._buffer.admit(needed)
            epoch, task = next(rows)
            request = GroupRequest(task, epoch, index, plan.group_size, "train", self._config.algorithm.temperature)
            group.create_task(self._sample(request))

    async def _sample(self, request: GroupRequest) -> None:
        await self._buffer.put(await self._rollouts.sample(request))

    def _judge(self, group: Group) -> str | None:
        if len(group.rollouts) < 2:
            return None
        return signal_of(group.rewards, [r.grade.value for r in group.rollouts], self._config.pass_threshold) or "train"

    # -- what is watched -----------------------------------------------------------------------------------------------

    def _starved(self, batch: Batch, times: int) -> None:
        counts = ", ".join(f"{n} {kind}" for kind, n in sorted(batch.without_signal.items()))
        message = f"no group of a batch had a signal to learn from ({counts or 'none'}; {batch.num_lost} lost)"
        self._sink.groups(f"starved-{self._state.step + 1:06d}-{times}", batch.all_groups)
        self._sink.event("warn", message, **rollout_metrics([], [d for g in batch.all_groups for d in g.discarded]))
        if times >= STARVED_BATCHES_ALLOWED:
            raise Halted(
                f"{times} batches in a row: {message}. The tasks are all too easy or too hard for this model, the "
                "grader does not tell tries apart, or the endpoints fail; look at the run's traces."
            )

    def _guard(self, metrics: dict[str, float]) -> None:
        """Engine and learner must agree on equal weights: otherwise importance weights are noise."""
        gap = max(metrics.get("logprob_gap", 0.0), metrics.get("canary_gap", 0.0))
        ratio = metrics.get("logprob_gap_ratio", 1.0)
        if gap >= GAP_HALTS_AT or not 1 / RATIO_HALTS_AT < ratio < RATIO_HALTS_AT:
            raise Halted(
                f"engine and learner disagree on the same weights: mean |difference| {gap:.3f} nats, ratio {ratio:.3f}"
            )
        if gap >= GAP_WARNS_AT:
            self._sink.event("warn", f"engine and learner differ by {gap:.3f} nats on the same weights", gap=gap)

    def _metrics(
        self, batch: Batch, version: int, sync: SyncReport | None, counts: dict[str, float]
    ) -> dict[str, float]:
        """Of the step that was just taken from policy `version`."""
        groups = batch.all_groups
        metrics = rollout_metrics([r for g in groups for r in g.rollouts], [d for g in groups for d in g.discarded])
        staleness = [version - group.oldest_version for group in batch.trained]
        metrics |= {
            "step": float(self._state.step),
            "total_steps": float(self._config.plan.steps),
            "version": float(self._state.version),
            "groups_trained": float(len(batch.trained)),
            "groups_lost": float(batch.num_lost),
            "staleness_mean": sum(staleness) / len(staleness),
            "staleness_max": float(max(staleness)),
        }
        metrics |= counts
        if not math.isnan(ratio := slow_rows_ratio(groups)):
            metrics["slow_rows_ratio"] = ratio
        metrics |= {f"groups_without_signal/{kind}": float(n) for kind, n in batch.without_signal.items()}
        if sync is not None:
            metrics |= {
                "sync_pause_s": sync.pause_s,
                "sync_total_s": sync.total_s,
                "sync_bytes": float(sync.num_bytes),
                "canary_gap": sync.canary_gap,
            }
            for engine in sync.fenced:
                self._sink.event(
                    "warn", f"engine {engine} differed from the learner after version {sync.version}: replaced"
                )
        return metrics

    # -- validation and checkpoints ------------------------------------------------------------------------------------

    async def _evaluate(self) -> Evaluation | None:
        """Grade the validation file on the engines' present version. No new training group starts meanwhile."""
        if not self._validation:
            return None
        self._admitting.clear()
        config = self._config
        try:
            graded = await self._unless_stopped(
                evaluate(
                    self._rollouts,
                    self._validation,
                    "validation",
                    config.plan.eval_samples,
                    config.algorithm.temperature,
                    config.pass_threshold,
                )
            )
        finally:
            self._admitting.set()
        if graded is None:
            return None
        evaluation, groups = graded
        step = self._state.step
        self._sink.groups(f"validation-{step:06d}", groups)
        text = f"grade {evaluation.grade:.3f} ± {evaluation.ci95:.3f}, reward {evaluation.reward:.3f}"
        in_flight = self._buffer.outstanding
        self._sink.event(
            "info",
            f"validation at step {step}: {text} (n = {evaluation.num_rollouts})",
            step=step,
            training_groups_in_flight=in_flight,
            **evaluation.as_dict(),
        )
        return evaluation

    async def _save(self, evaluation: Evaluation | None, metrics: dict[str, float]) -> dict[str, float]:
        """Write a checkpoint; what is to be told of that. `metrics` are those of its step."""
        valid_reward = None if evaluation is None else evaluation.reward
        self._state = replace(self._state, valid_reward=valid_reward, metrics=metrics)
        saving = time.monotonic()
        path = await self._checkpoints.save(self._state, self._learner.save)
        saved = {"time_checkpoint_s": time.monotonic() - saving, "checkpoint_bytes": float(num_bytes(path))}
        self._saved_step = self._state.step
        self._sink.event("info", f"checkpoint {path.name}", path=str(path))
        return saved


def _validation_metrics(evaluation: Evaluation | None) -> dict[str, float]:
    if evaluation is None:
        return {}
    return {
        "full_valid_mean_reward": evaluation.reward,
        "full_valid_mean_grade": evaluation.grade,
        "full_valid_pass_rate": evaluation.pass_rate,
        "full_valid_ci95": evaluation.ci95,
        "full_valid_n": float(evaluation.num_rollouts),
        "full_valid_tool_calls_mean": evaluation.tool_calls,
    }


class _StepsDone(Exception):
    """Cancels what still samples when the last step is taken."""
