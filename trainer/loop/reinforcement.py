"""The asynchronous loop: tasks -> graded groups -> advantages -> update -> new weights, while generation goes on.

Depends on protocols only. Generation for later steps continues while the learner trains; `Buffer` bounds the staleness.

    admit --> sample --> buffer --> batch --> learner step --> publish --> checks, validation, checkpoint
      ^                                                           |
      +------------- room for one more group ---------------------+
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trainer.algorithm.advantage import advantages, signal_of
from trainer.data.rows import RowOrder
from trainer.errors import first_error
from trainer.events import StepDone, UpdateSkipped
from trainer.loop.buffer import TRAIN, Batch, Buffer
from trainer.loop.checkpoint import Checkpoints, LoopState
from trainer.loop.health import Health
from trainer.loop.measure import step_metrics, step_times
from trainer.loop.saving import Progress, rows_of
from trainer.loop.validation import Validation, validation_metrics
from trainer.protocols import EventSink, Learner, Rollouts
from trainer.spec.job import AlgorithmSpec
from trainer.spec.plan import Plan
from trainer.types import Evaluation, Group, GroupRequest, Task, TrainSequence

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoopConfig:
    plan: Plan
    algorithm: AlgorithmSpec
    seed: int
    pass_threshold: float


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
        plan, algorithm = config.plan, config.algorithm
        self._config = config
        self._tasks = tasks
        self._rollouts = rollouts
        self._learner = learner
        self._sink = sink
        self._progress = Progress(learner, checkpoints, sink, plan.steps)
        self._health = Health(plan.steps, sink)
        self._validation = Validation(
            rollouts, validation, plan.eval_samples, algorithm.temperature, config.pass_threshold, sink
        )
        self._buffer = Buffer(plan.batch_size, algorithm.max_staleness, plan.batch_size, self._judge)
        self._admitting = asyncio.Event()
        self._stopping = asyncio.Event()
        self._started = time.monotonic()

    async def resume(self, folder: Path, state: LoopState) -> None:
        """Continue from a checkpoint: restore the learner, the state and the engines' weights."""
        await self._progress.resume(folder, state)
        await self._rollouts.publish(state.version)

    def stop(self) -> None:
        """Stop after the update in progress and save a checkpoint; an evaluation is cancelled."""
        self._stopping.set()

    async def run(self) -> LoopState:
        """Train to the last step (or until `stop`).

        Raises:
            UserError: An endpoint refuses access.
            Halted: Gradients, signal or engines can no longer be trusted.
        """
        if self._progress.step == 0:
            await self._validate()
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
        if not self._progress.is_saved:
            await self._progress.save(None, {})
        return self._progress.state

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _steps(self) -> None:
        while self._progress.has_steps_left and not self._stopping.is_set():
            started = time.monotonic()
            batch = await self._unless_stopped(self._buffer.next_batch())
            if batch is None:
                return
            if batch.trained:
                await self._step(batch, started)
            else:
                self._health.starved(batch, self._progress.step)

    async def _step(self, batch: Batch, started: float) -> None:
        plan, trained_version = self._config.plan, self._progress.state.version
        times = {"time_wait_s": time.monotonic() - started}
        learning = time.monotonic()
        report = await self._learner.step(self._sequences(batch), trained_version)
        times["time_learn_s"] = time.monotonic() - learning
        version, sync = trained_version, None
        if report.applied:
            version += 1
            sync = await self._rollouts.publish(version)
            times["time_sync_s"] = sync.total_s
        requests = [group.request for group in batch.all_groups]
        self._progress.advance(rows_of(requests), version, int(report.metrics.get("trained_tokens", 0)))
        await self._buffer.published()
        step = self._progress.step
        if not report.applied:
            self._sink.emit(UpdateSkipped(step=step))
        self._sink.groups(f"step-{step:06d}", batch.all_groups)
        metrics = step_metrics(batch, self._progress.state, plan.steps, trained_version, sync)
        metrics |= await self._rollouts.counts()
        metrics |= report.metrics | times | {"update_applied": float(report.applied)}
        self._health.check(batch, step, metrics)
        if not self._stopping.is_set() and (step % plan.eval_interval == 0 or step == plan.steps):
            evaluating = time.monotonic()
            evaluation = await self._validate()
            metrics |= validation_metrics(evaluation) | {"time_eval_s": time.monotonic() - evaluating}
            valid_reward = None if evaluation is None else evaluation.reward
            metrics |= await self._progress.save(valid_reward, metrics | step_times(started, self._started))
        metrics |= step_times(started, self._started)
        self._sink.emit(StepDone(step=step, total_steps=plan.steps, metrics=metrics))

    def _sequences(self, batch: Batch) -> list[TrainSequence]:
        sequences = []
        for group in batch.trained:
            values = advantages(self._config.algorithm.advantage, group.rewards)
            for rollout, advantage in zip(group.rollouts, values, strict=True):
                r = rollout
                sequences.append(
                    TrainSequence(r.token_ids, r.loss_mask, r.logprobs, r.versions, float(advantage), r.structure)
                )
        return sequences

    async def _validate(self) -> Evaluation | None:
        """Grade the validation file on the engines' current version; no new training group starts until then."""
        self._admitting.clear()
        try:
            return await self._unless_stopped(self._validation.run(self._progress.step, self._buffer.outstanding))
        finally:
            self._admitting.set()

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; if `stop` comes first, cancels `work` and returns None."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            stopping.cancel()
            if working.cancel():
                await asyncio.wait({working})

    # -- admission -----------------------------------------------------------------------------------------------------

    async def _admit(self, group: asyncio.TaskGroup) -> None:
        """Start groups as the buffer allows. A group that raises ends the loop, since such an error is fatal."""
        plan, first = self._config.plan, self._progress.state
        rows: Iterator[tuple[int, Task]] = iter(RowOrder(self._tasks, self._config.seed, first.epoch, first.rows_done))

        def needed() -> int:
            return (plan.steps - self._progress.step) * plan.batch_size

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
        return signal_of(group.rewards, [r.grade.value for r in group.rollouts], self._config.pass_threshold) or TRAIN


class _StepsDone(Exception):
    """Cancels the remaining sampling tasks when the last step is done."""
