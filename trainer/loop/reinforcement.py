"""The asynchronous RL loop: tasks -> graded groups -> advantages -> update -> new weights.

The engines sample rollouts for later steps while the learner trains; `GroupBuffer` bounds the staleness. The loop
depends on protocols only.

    admit --> sample --> buffer --> batch --> learner step --> publish --> checks, validation, checkpoint
      ^                                                           |
      +------------- slot for one more group ---------------------+
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from agent_rft.errors import TrainingHalted, first_error
from agent_rft.events import (
    NothingLeftToLearn,
    PhaseStarted,
    StepDone,
    UpdateSkipped,
    UpdatesReplayed,
)
from agent_rft.loop_protocols import Learner, LoopEventSink, RolloutService
from agent_rft.metrics.confidence_intervals import GRADES
from agent_rft.metrics.missing_rollouts import ValidationScore
from agent_rft.rows.dataset_rows import RowOrder
from agent_rft.spec.job import AlgorithmSpec, CheckpointInterval, EarlyStop
from agent_rft.spec.step_plan import StepPlan
from agent_rft.trainer.algorithm.advantage import classify_group_variance, compute_advantages
from agent_rft.trainer.loop.checkpoint import Checkpoints, LoopState
from agent_rft.trainer.loop.checkpoint_saver import CheckpointSaver, FullDiskRetry
from agent_rft.trainer.loop.group_buffer import TRAIN, Batch, GroupBuffer
from agent_rft.trainer.loop.journal import Journal
from agent_rft.trainer.loop.learner_restarts import LearnerRestarts
from agent_rft.trainer.loop.rl_metrics import step_metrics, step_times
from agent_rft.trainer.loop.step_checks import StepChecks
from agent_rft.trainer.loop.validation import Validation, report_best, should_stop, validation_metrics
from agent_rft.types import Evaluation, Group, GroupRequest, StepReport, SyncReport, Task, TrainSegment

T = TypeVar("T")
CHECK_LEARNER_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class LoopConfig:
    plan: StepPlan
    algorithm: AlgorithmSpec
    seed: int
    pass_threshold: float
    checkpoint_interval: CheckpointInterval
    early_stop: EarlyStop | None = None
    grade_range: tuple[float, float] = GRADES

    @property
    def min_gain(self) -> float:
        return 0.0 if self.early_stop is None else self.early_stop.min_gain


class ReinforcementLoop:
    """RL training of one job. `run` may be called only once."""

    def __init__(
        self,
        config: LoopConfig,
        tasks: Sequence[Task],
        validation: Sequence[Task],
        rollouts: RolloutService,
        learner: Learner,
        checkpoints: Checkpoints,
        journal: Journal,
        sink: LoopEventSink,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        check_every_s: float = CHECK_LEARNER_EVERY_S,
    ) -> None:
        plan, algorithm = config.plan, config.algorithm
        self._config = config
        self._tasks = tasks
        self._rollouts = rollouts
        self._learner = learner
        self._sink = sink
        self._check_every_s = check_every_s
        self._journal = journal
        self._disk = FullDiskRetry(sink, sleep)
        self._restarts = LearnerRestarts(sink, self._recover, lambda: self._progress.step, sleep)
        self._progress = CheckpointSaver(
            learner, checkpoints, journal, config.checkpoint_interval, sink, self._disk, plan.steps, clock
        )
        self._health = StepChecks(plan.steps, sink)
        self._validation = Validation(
            rollouts,
            validation,
            plan.eval_samples,
            algorithm.evaluation_temperature,
            config.pass_threshold,
            config.grade_range,
            sink,
        )
        self._buffer = GroupBuffer(plan.batch_size, algorithm.max_staleness, plan.batch_size, self._classify)
        self._admitting = asyncio.Event()
        self._stopping = asyncio.Event()
        self._started = time.monotonic()
        self._attempt = 0  # earlier starts of this run
        self._finished: dict[int, Group] = {}  # recorded groups of earlier starts that are in no batch
        self._reported: Container[int] = ()
        self._unreported: list[_UpdateResult] = []
        self._nothing_left = False

    async def resume(self, reported_steps: Container[int] = ()) -> None:
        """Continue from the latest checkpoint: restore learner, state and engines, and replay later batches.

        `reported_steps` contains the steps whose StepDone was already emitted. StepDone is emitted for the other
        completed steps.
        """
        self._reported, started = reported_steps, time.monotonic()
        before = await self._restarts.retry(lambda: self._progress.resume(reported_steps))
        self._sink.emit(PhaseStarted(phase="replay", step=before.step))
        await self._restarts.retry(lambda: self._replay(self._progress.state))
        state = self._progress.state
        for group in await asyncio.to_thread(lambda: list(self._journal.read_finished_groups(state.next_group))):
            if group.newest_version <= state.version:  # otherwise the user went back to an older checkpoint
                self._finished[group.request.index] = group
        self._buffer.start_at(state.next_group)
        if state.version:
            await self._restarts.retry(lambda: self._rollouts.publish(state.version))
        self._sink.emit(
            UpdatesReplayed(
                num_updates=state.step - before.step,
                num_groups=len(self._finished),
                duration_s=time.monotonic() - started,
            )
        )

    @property
    def next_batch_progress(self) -> tuple[int, list[int]]:
        """Progress of the next batch; see `GroupBuffer.next_batch_progress`."""
        return self._buffer.next_batch_progress

    def stop(self) -> None:
        """Stop after the update in progress and save a checkpoint; a running evaluation is cancelled."""
        self._stopping.set()
        self._disk.stop()

    async def run(self) -> LoopState:
        """Train until the last step, early stopping or a call to `stop`, or until nothing is left to learn.

        Raises:
            UserError: An endpoint refuses access.
            TrainingHalted: Gradients are not finite, batches have zero variance, or engines differ from the learner.
            LearnerFailed: A rank was lost repeatedly.
        """
        plan = self._config.plan
        self._attempt = await asyncio.to_thread(self._journal.count_start)
        if self._progress.step == 0:
            await self._validate_base_model()
        self._admitting.set()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._start_groups(group))
                await self._run_steps()
                raise _StepsDone
        except ExceptionGroup as errors:
            _, failed = errors.split(_StepsDone)
            if failed is not None:
                raise first_error(failed) from errors
        finally:
            await self._progress.wait_settled()
            await self._journal.wait_settled()
        await self._restarts.retry(self._progress.save_last)
        if (best := self._progress.best()) is not None and not self._stopping.is_set():
            report_best(self._sink, self._progress.step, plan.steps, best, self.has_stopped_early)
        if self._nothing_left:
            self._sink.emit(NothingLeftToLearn(step=self._progress.step, total_steps=plan.steps))
        return self._progress.state

    @property
    def has_stopped_early(self) -> bool:
        """Whether early stopping has ended the run."""
        return self._should_stop and self._progress.has_steps_left and not self._stopping.is_set()

    @property
    def _should_stop(self) -> bool:
        return should_stop(self._config.early_stop, self._progress.state.valid_rewards)

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _run_steps(self) -> None:
        for learned in self._unreported:
            await self._finish_step(learned, time.monotonic(), {})
        self._unreported.clear()
        while self._progress.has_steps_left and not (
            self._stopping.is_set() or self._should_stop or self._nothing_left
        ):
            started = time.monotonic()
            batch = await self._run_unless_stopped(self._next_batch())
            if batch is None:
                return
            times = {"time_wait_s": time.monotonic() - started}
            await self._disk.retry_while_full(partial(self._journal.add_batch, batch))
            times["time_write_ahead_s"] = time.monotonic() - started - times["time_wait_s"]
            if batch.to_train:
                await self._run_step(batch, started, times)
            else:
                self._progress.state = _mark_rows_done(self._progress.state, batch)
                async with self._drop_if_halted(batch):
                    self._nothing_left = self._health.report_zero_variance(batch, self._progress.step)

    async def _next_batch(self) -> Batch:
        return await self.run_and_check_learner(self._buffer.next_batch())

    async def run_and_check_learner(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, which waits for engines. Restart the learner if it is lost during this wait.

        If engines are lost together with the learner, the replacement engines wait for weights. Only a restarted
        learner can send these weights.
        """
        working = asyncio.create_task(work)
        try:
            await self._restarts.retry(self._learner.release_devices)
            while not (await asyncio.wait({working}, timeout=self._check_every_s))[0]:
                await self._restarts.retry(self._learner.check_alive)
                await self._restarts.retry(self._learner.release_devices)
            return working.result()
        finally:
            if working.cancel():
                await asyncio.wait({working})

    async def _run_step(self, batch: Batch, started: float, times: dict[str, float]) -> None:
        learning, before = time.monotonic(), self._progress.state
        learned = await self._restarts.retry(lambda: self._update(batch, before))
        times["time_learn_s"] = time.monotonic() - learning
        state = self._progress.state = learned.state  # a learner lost after this replays up to this state
        sync = None
        if learned.report.applied:
            publishing = time.monotonic()
            sync = await self._restarts.retry(lambda: self._rollouts.publish(state.version))
            times["time_sync_s"] = time.monotonic() - publishing
        await self._buffer.free_published()
        await self._finish_step(learned, started, times, sync)

    async def _update(self, batch: Batch, state: LoopState) -> _UpdateResult:
        """Run one update on a batch, starting at `state`."""
        async with self._drop_if_halted(batch):
            report = await self._learner.step(self._to_train_segments(batch), state.version)
        tokens = int(report.metrics.get("trained_tokens", 0))
        return _UpdateResult(
            _mark_rows_done(state, batch).with_step(state.version + report.applied, tokens), batch, report
        )

    async def _finish_step(
        self, learned: _UpdateResult, started: float, times: dict[str, float], sync: SyncReport | None = None
    ) -> None:
        """Complete a step after its update: checks, validation, checkpoint and report."""
        plan, state, batch, report = self._config.plan, learned.state, learned.batch, learned.report
        if not report.applied:
            self._sink.emit(UpdateSkipped(step=state.step))
        self._sink.emit_groups(f"step-{state.step:06d}", batch.all_groups)
        metrics = step_metrics(batch, state, plan.steps, state.version - report.applied, sync)
        metrics |= await self._rollouts.get_counts()
        metrics |= report.metrics | times | {"update_applied": float(report.applied)}
        async with self._drop_if_halted(batch):
            self._health.check(batch, state.step, metrics)
        is_latest = state.step == self._progress.step  # otherwise only its report was lost
        validated = learned.validated
        validates = state.step % plan.eval_interval == 0 or state.step == plan.steps
        if validated is None and validates and is_latest and not self._stopping.is_set():
            validated = await self._validate_step(state, metrics, started)
        metrics |= {} if validated is None else validated.metrics
        if is_latest and (validated is not None or self._progress.is_due):
            metrics |= await self._save(validated or state.without_validation(metrics, is_servable=False))
        metrics |= step_times(started, self._started)
        self._sink.emit(StepDone(step=state.step, total_steps=plan.steps, metrics=metrics))

    async def _validate_step(self, state: LoopState, metrics: dict[str, float], started: float) -> LoopState:
        """Validate a step, record the result, and return the state for its checkpoint."""
        evaluating = time.monotonic()
        evaluation, score = await self._validate() or (None, None)
        metrics = metrics | validation_metrics(evaluation) | {"time_eval_s": time.monotonic() - evaluating}
        metrics |= step_times(started, self._started)
        reward = None if evaluation is None else evaluation.reward
        return await self._record_validation(state.with_validation(reward, metrics, score, self._config.min_gain))

    async def _validate_base_model(self) -> None:
        """Validate the base model, because early stopping compares later rewards with the base model's reward."""
        if not self._progress.state.valid_rewards and (validated := await self._validate()) is not None:
            evaluation, score = validated
            await self._record_validation(
                self._progress.state.with_validation(evaluation.reward, {}, score, self._config.min_gain)
            )

    async def _record_validation(self, validated: LoopState) -> LoopState:
        """Record a validation in the journal and in the loop's state. Do nothing if `stop` was called."""
        if not self._stopping.is_set():
            await self._disk.retry_while_full(partial(self._journal.add_validation, validated))
            self._progress.state = self._progress.state.with_validations_of(validated)
        return validated

    @asynccontextmanager
    async def _drop_if_halted(self, batch: Batch) -> AsyncIterator[None]:
        """Context manager that drops a batch from the journal if TrainingHalted is raised inside.

        A resumed run must not learn from this batch.
        """
        try:
            yield
        except TrainingHalted:
            await self._journal.drop(batch)
            raise

    async def _save(self, state: LoopState) -> dict[str, float]:
        return await self._restarts.retry(partial(self._progress.save, state))

    def _to_train_segments(self, batch: Batch) -> list[TrainSegment]:
        sequences: list[TrainSegment] = []
        for group in batch.to_train:
            values = compute_advantages(self._config.algorithm.advantage, group.rewards)
            for rollout, advantage in zip(group.trainable, values, strict=True):
                sequences += rollout.to_train_segments(float(advantage))
        return sequences

    # -- a lost learner ------------------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Restart a lost learner, and replay updates up to the latest step."""
        await self._progress.wait_settled()
        await self._learner.restart()
        await self._replay(await self._progress.load_latest(), self._progress.step)
        if version := self._progress.state.version:
            await self._rollouts.publish(version)  # the weight buckets for late engines were lost

    async def _replay(self, state: LoopState, last_step: int | None = None) -> None:
        """Repeat the updates recorded after `state`, up to `last_step`; if `last_step` is None, repeat all of them.

        The loop's state is updated only if `last_step` is None.
        """
        min_gain = self._config.min_gain
        if state.step == 0 and (validated := self._journal.with_validation(state, min_gain)) is not None:
            state = state.with_validations_of(validated)
        if last_step is None:
            self._progress.state = state
        for record in await asyncio.to_thread(self._journal.read_batches, state.next_group):
            if last_step is not None and state.step >= last_step:
                break
            batch = await asyncio.to_thread(self._journal.read_batch, record)
            learned = await self._update(batch, state) if batch.to_train else None
            state = _mark_rows_done(state, batch) if learned is None else learned.state
            validated = None if learned is None else self._journal.with_validation(state, min_gain)
            if validated is not None:
                state = state.with_validations_of(validated)
            if last_step is None:
                self._progress.state = state
                if learned is not None and state.step not in self._reported:
                    self._unreported.append(replace(learned, validated=validated))
            if validated is not None:  # the checkpoint of this validation is missing
                await self._progress.save(validated)

    async def _validate(self) -> tuple[Evaluation, ValidationScore] | None:
        """Grade the validation file on the engines' current version. No training group starts during the validation."""
        self._admitting.clear()
        validation = self._validation.run(self._progress.step, self._buffer.outstanding)
        try:
            return await self._run_unless_stopped(self.run_and_check_learner(validation))
        finally:
            self._admitting.set()

    async def _run_unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`; if `stop` is called first, cancel `work` and return None."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            stopping.cancel()
            if working.cancel():
                await asyncio.wait({working})

    # -- admission -----------------------------------------------------------------------------------------------------

    async def _start_groups(self, group: asyncio.TaskGroup) -> None:
        """Start groups as the buffer allows. An error in a group is fatal and ends the loop."""
        plan, first = self._config.plan, self._progress.state
        rows: Iterator[tuple[int, Task]] = iter(RowOrder(self._tasks, self._config.seed, first.epoch, first.rows_done))

        def needed() -> int:
            return (plan.steps - self._progress.step) * plan.batch_size

        while True:
            await self._admitting.wait()
            index = await self._buffer.admit(needed)
            epoch, task = next(rows)
            temperature = self._config.algorithm.temperature
            request = GroupRequest(task, epoch, index, plan.group_size, "train", temperature, self._attempt)
            group.create_task(self._sample(request))

    async def _sample(self, request: GroupRequest) -> None:
        group = self._finished.pop(request.index, None)
        if group is None or group.request.task.row_id != request.task.row_id:
            group = await self._rollouts.sample(request)
            await self._disk.retry_while_full(partial(self._journal.add_group, group))
        await self._buffer.put(group)

    def _classify(self, group: Group) -> str | None:
        grades = [rollout.grade.value for rollout in group.trainable]
        if len(grades) < 2:
            return None
        return classify_group_variance(group.rewards, grades, self._config.pass_threshold) or TRAIN


@dataclass(frozen=True, slots=True)
class _UpdateResult:
    """Result of an update on a batch, and the state after it."""

    state: LoopState
    batch: Batch
    report: StepReport
    validated: LoopState | None = None  # set if an earlier start validated the step


def _mark_rows_done(state: LoopState, batch: Batch) -> LoopState:
    """Return `state` with the batch's rows marked as done."""
    groups = batch.all_groups
    return state.with_rows([(group.request.epoch, group.request.task.row_id) for group in groups], len(groups))


class _StepsDone(Exception):
    """Raised to cancel the remaining sampling tasks after the last step."""
