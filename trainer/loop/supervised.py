"""Supervised fine-tuning: cross-entropy on the assistant's tokens of whole conversations, tools included."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from trainer.data.chat import Renderer
from trainer.data.rows import RowOrder
from trainer.loop.checkpoint import Checkpoints, LoopState, num_bytes
from trainer.metrics import step_times
from trainer.model.batch import WeightedSequence
from trainer.protocols import EventSink
from trainer.spec.job import Plan, SupervisedAlgorithm
from trainer.types import StepReport, Task


class SupervisedLearner(Protocol):
    """The learner's part, beside `save` and `load` of `trainer.protocols.Learner`."""

    async def step(self, sequences: Sequence[WeightedSequence], version: int) -> StepReport: ...

    async def supervised_loss(self, sequences: Sequence[WeightedSequence]) -> float: ...

    async def save(self, folder: Path) -> None: ...

    async def load(self, folder: Path) -> None: ...


class SupervisedLoop:
    """One job's supervised training; the reinforcement loop's sibling without rollouts. A checkpoint's `valid_reward`
    is the negative validation loss, so that the best are the lowest.
    """

    def __init__(
        self,
        plan: Plan,
        algorithm: SupervisedAlgorithm,
        seed: int,
        tasks: Sequence[Task],
        validation: Sequence[Task],
        renderer: Renderer,
        learner: SupervisedLearner,
        checkpoints: Checkpoints,
        sink: EventSink,
        job_digest: str,
    ) -> None:
        self._plan = plan
        self._algorithm = algorithm
        self._seed = seed
        self._tasks = tasks
        self._validation = validation
        self._renderer = renderer
        self._learner = learner
        self._checkpoints = checkpoints
        self._sink = sink
        self._state = LoopState(0, 0, 0, [], 0, None, job_digest)
        self._saved_step = 0
        self._stopping = False
        self._begun = time.monotonic()

    async def resume(self, folder: Path, state: LoopState) -> None:
        await self._learner.load(folder)
        self._state, self._saved_step = state, state.step
        self._sink.event("info", f"resumed at step {state.step} of {self._plan.steps}")

    def stop(self) -> None:
        """End after the update that is under way, with a checkpoint."""
        self._stopping = True

    async def run(self) -> LoopState:
        rows = iter(RowOrder(self._tasks, self._seed, self._state.epoch, self._state.rows_done))
        while self._state.step < self._plan.steps and not self._stopping:
            batch = list(islice(rows, self._plan.batch_size))
            await self._step(batch)
        if self._saved_step < self._state.step:
            await self._save(None, {})
        return self._state

    async def _step(self, batch: list[tuple[int, Task]]) -> None:
        begun = time.monotonic()
        sequences = await asyncio.to_thread(self._sequences, [task for _, task in batch])
        report = await self._learner.step(sequences, self._state.version)
        epoch = batch[-1][0]
        done = set(self._state.rows_done) if epoch == self._state.epoch else set()
        done |= {task.row_id for row_epoch, task in batch if row_epoch == epoch}
        self._state = replace(
            self._state,
            step=self._state.step + 1,
            version=self._state.version + int(report.applied),
            epoch=epoch,
            rows_done=sorted(done),
            trained_tokens=self._state.trained_tokens + int(report.metrics["trained_tokens"]),
        )
        metrics = dict(report.metrics) | {
            "step": float(self._state.step),
            "total_steps": float(self._plan.steps),
            "version": float(self._state.version),
            "update_applied": float(report.applied),
        }
        step = self._state.step
        if not self._stopping and (step % self._plan.eval_interval == 0 or step == self._plan.steps):
            loss = None
            if self._validation:
                loss = await self._learner.supervised_loss(self._sequences(self._validation))
                metrics["full_valid_loss"] = loss
                self._sink.event("info", f"validation at step {step}: loss {loss:.4f} ({len(self._validation)} rows)")
            metrics |= await self._save(loss, metrics | step_times(begun, self._begun))
        self._sink.step(metrics | step_times(begun, self._begun))

    async def _save(self, loss: float | None, metrics: dict[str, float]) -> dict[str, float]:
        """Write a checkpoint; what is to be told of that. `metrics` are those of its step."""
        self._state = replace(self._state, valid_reward=None if loss is None else -loss, metrics=metrics)
        saving = time.monotonic()
        path = await self._checkpoints.save(self._state, self._learner.save)
        saved = {"time_checkpoint_s": time.monotonic() - saving, "checkpoint_bytes": float(num_bytes(path))}
        self._saved_step = self._state.step
        self._sink.event("info", f"checkpoint {path.name}", path=str(path))
        return saved

    def _sequences(self, tasks: Sequence[Task]) -> list[WeightedSequence]:
        sequences = []
        for task in tasks:
            tokens, mask = self._renderer.conversation(task.messages, task.tools)
            weights = np.where(mask, 1.0, self._algorithm.context_weight).astype(np.float32)
            weights[0] = 0.0  # nothing predicts the first token
            sequences.append(WeightedSequence(np.array(tokens, dtype=np.int32), weights))
        return sequences
