"""Supervised fine-tuning on full conversations: cross-entropy of the assistant's tokens, including tool calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

import numpy as np

from agent_rft.chat.conversation import ConversationSampler
from agent_rft.events import LossEvaluated, PhaseStarted, StepDone, UpdateSkipped
from agent_rft.loop_protocols import Checkpointable, LoopEventSink
from agent_rft.rows.dataset_rows import RowOrder
from agent_rft.spec.job import CheckpointInterval
from agent_rft.spec.step_plan import StepPlan
from agent_rft.trainer.loop.checkpoint import Checkpoints, LoopState
from agent_rft.trainer.loop.checkpoint_saver import CheckpointSaver, FullDiskRetry
from agent_rft.trainer.loop.learner_restarts import LearnerRestarts
from agent_rft.trainer.loop.rl_metrics import step_times
from agent_rft.trainer.model.micro_batches import WeightedSequence
from agent_rft.types import StepReport, Task


class SupervisedLearner(Checkpointable, Protocol):
    """Protocol of a learner for supervised training."""

    async def step(self, sequences: Sequence[WeightedSequence], version: int) -> StepReport: ...

    async def supervised_loss(self, sequences: Sequence[WeightedSequence]) -> float:
        """Return the mean cross-entropy in nats over all weighted tokens."""


class SupervisedLoop:
    """Supervised training of one job; the counterpart of the RL loop, without rollouts.

    A checkpoint's `valid_reward` is the negative validation loss, so the best checkpoint has the lowest loss.
    """

    def __init__(
        self,
        plan: StepPlan,
        seed: int,
        tasks: Sequence[Task],
        validation: Sequence[Task],
        samples: ConversationSampler,
        learner: SupervisedLearner,
        checkpoints: Checkpoints,
        interval: CheckpointInterval,
        sink: LoopEventSink,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._plan = plan
        self._seed = seed
        self._tasks = tasks
        self._validation = validation
        self._samples = samples
        self._learner = learner
        self._sink = sink
        self._disk = FullDiskRetry(sink, sleep)
        self._restarts = LearnerRestarts(sink, self._recover, lambda: self._progress.step, sleep)
        self._progress = CheckpointSaver(learner, checkpoints, None, interval, sink, self._disk, plan.steps)
        self._stopping = False
        self._started = time.monotonic()

    async def resume(self, reported_steps: Container[int] = ()) -> None:
        """Continue from the latest checkpoint.

        Steps after this checkpoint are repeated, with the same losses as before. `reported_steps`
        contains the steps whose StepDone was already emitted.
        """
        await self._with_learner(lambda: self._progress.resume(reported_steps))

    def stop(self) -> None:
        """Stop after the update in progress and save a checkpoint."""
        self._stopping = True
        self._disk.stop()

    async def run(self) -> LoopState:
        """Train until the last step, or until `stop`.

        Raises:
            TrainingHalted: Three updates in a row had a gradient that is not finite.
            LearnerFailed: A rank was lost repeatedly.
        """
        await self._with_learner(self._train)
        return self._progress.state

    async def _with_learner(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work`; if a rank is lost, run it again from the latest checkpoint."""
        try:
            await self._restarts.retry(work)
        finally:
            await self._progress.wait_settled()

    async def _recover(self) -> None:
        """Restart a lost learner from the latest checkpoint."""
        await self._progress.wait_settled()
        await self._learner.restart()
        self._progress.state = await self._progress.load_latest()

    async def _train(self) -> None:
        state = self._progress.state
        rows = iter(RowOrder(self._tasks, self._seed, state.epoch, state.rows_done))
        while self._progress.has_steps_left and not self._stopping:
            await self._step(list(islice(rows, self._plan.batch_size)))
        await self._progress.save_last()

    async def _step(self, batch: list[tuple[int, Task]]) -> None:
        started, state = time.monotonic(), self._progress.state
        sequences = await asyncio.to_thread(self._to_weighted_sequences, [task for _, task in batch])
        report = await self._learner.step(sequences, state.version)
        state = state.with_rows([(epoch, task.row_id) for epoch, task in batch])
        state = state.with_step(state.version + report.applied, int(report.metrics["trained_tokens"]))
        self._progress.state, step = state, state.step
        if not report.applied:
            self._sink.emit(UpdateSkipped(step=step))
        metrics = dict(report.metrics) | {
            "step": float(step),
            "total_steps": float(self._plan.steps),
            "version": float(state.version),
            "update_applied": float(report.applied),
        }
        validates = not self._stopping and (step % self._plan.eval_interval == 0 or step == self._plan.steps)
        loss = await self._validation_loss(step) if validates else None
        metrics |= {} if loss is None else {"full_valid_loss": loss}
        if validates or self._progress.is_due:
            reward, known = None if loss is None else -loss, metrics | step_times(started, self._started)
            metrics |= await self._progress.save(
                replace(state, valid_reward=reward, metrics=known, is_servable=validates)
            )
        metrics |= step_times(started, self._started)
        self._sink.emit(StepDone(step=step, total_steps=self._plan.steps, metrics=metrics))

    async def _validation_loss(self, step: int) -> float | None:
        if not self._validation:
            return None
        self._sink.emit(PhaseStarted(phase="validation", step=step))
        loss = await self._learner.supervised_loss(self._to_weighted_sequences(self._validation))
        self._sink.emit(LossEvaluated(step=step, loss=loss, num_rows=len(self._validation)))
        return loss

    def _to_weighted_sequences(self, tasks: Sequence[Task]) -> list[WeightedSequence]:
        sequences = []
        for task in tasks:
            for sample in self._samples(task.messages, task.tools):
                weights = np.array(sample.mask, dtype=np.float32)
                weights[0] = 0.0  # nothing predicts the first token
                sequences.append(WeightedSequence(np.array(sample.token_ids, dtype=np.int32), weights))
        return sequences
