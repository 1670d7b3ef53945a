"""One run of a prepared job: training, evaluation or readiness check."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from agent_rft.actors.rollout.fleet import Fleet
from agent_rft.chat.conversation import split_conversation
from agent_rft.cluster.checks.check_job import CheckedJob
from agent_rft.cluster.readiness.readiness_report import Readiness
from agent_rft.cluster.run.readiness_check import ReadinessOptions, judge_readiness
from agent_rft.cluster.run.run_actors import RunActors
from agent_rft.cluster.run.run_outputs import RunOutputs
from agent_rft.cluster.run.stop_signals import StopSignals
from agent_rft.cluster.views.comparison.fewer_calls import find_fewer_calls
from agent_rft.cluster.views.live_view import before_after_table
from agent_rft.cluster.views.readiness.readiness_page import write_page
from agent_rft.cluster.views.utilization import measure_utilization
from agent_rft.errors import RftError
from agent_rft.events import Evaluated, Outcome, PhaseStarted, ReadinessJudged
from agent_rft.spec.operator.operator_config import OperatorConfig
from agent_rft.trainer.loop.checkpoint import best_checkpoint, latest_checkpoint
from agent_rft.trainer.loop.evaluation import evaluate
from agent_rft.trainer.loop.journal import Journal
from agent_rft.trainer.loop.reinforcement import LoopConfig, ReinforcementLoop
from agent_rft.trainer.loop.supervised import SupervisedLoop
from agent_rft.types import Evaluation, Group, Task


class JobRun:
    """One run of a prepared job with its actors and outputs.

    `cli_args` contains the job file and options from the command line. If `resumed`, the run continues from its last
    checkpoint.
    """

    def __init__(
        self,
        prepared: CheckedJob,
        operator: OperatorConfig,
        outputs: RunOutputs,
        signals: StopSignals,
        resumed: bool,
        cli_args: Sequence[str],
        actors: Callable[..., RunActors] = RunActors,
    ) -> None:
        self.outcome: Outcome = "done"
        self.readiness: Readiness | None = None
        self.outputs = outputs
        self._folder = outputs.folder
        self._emit = outputs.stream.emit
        self.cli_args = cli_args
        self._error = ""
        self._cut_short = False
        self._resumed = resumed
        self._prepared = prepared
        self._signals = signals
        self._operator = operator
        self._actors = actors(
            prepared, operator, outputs.folder, outputs.metrics, outputs.stream.emit, self._change_layout
        )
        outputs.begin(prepared)

    def _change_layout(self, prepared: CheckedJob) -> None:
        before, self._prepared = self._prepared, prepared
        self.outputs.change_layout(before, prepared)

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return self._folder.path

    def record_immediate_end(self) -> None:
        """Stop uploading checkpoints. Record that the run was stopped and ends immediately."""
        self.outcome, self._cut_short = "stopped", True
        self.outputs.stop_uploads()

    def record_failure(self, error: Exception) -> None:
        """Record the error that ends the run."""
        self.outcome = "failed"
        self.outputs.traces.record_failure(error)
        self._error = str(error) if isinstance(error, RftError) else f"{type(error).__name__}: {error}"

    async def train(self) -> None:
        if self._prepared.job.method.type == "supervised":
            await self.train_supervised()
        else:
            await self.train_by_reinforcement()

    async def train_by_reinforcement(self) -> None:
        checkpoints, journal = self.outputs.checkpoints(), Journal(self._folder.journal)
        await self._actors.start()
        prepared, job = self._prepared, self._prepared.job
        fleet, learner = self._actors.fleet, self._actors.learner
        self.outputs.progress.start(fleet.rollout_progress, self._emit)
        before = self._folder.evaluations().get("test-before")
        if prepared.test and before is None and not journal.has_batches:
            before, _ = await self._grade(fleet, prepared.test, "test-before", prepared.plan.eval_samples)
        algorithm = job.reinforcement.algorithm
        if prepared.placement.takes_turns:  # engines never sample while the learner learns, so nothing can be stale
            algorithm = algorithm.model_copy(update={"max_staleness": 0})
        config = LoopConfig(
            prepared.plan,
            algorithm,
            job.seed,
            job.reinforcement.grader.pass_threshold,
            job.cluster.checkpoint_interval,
            job.reinforcement.early_stop,
            job.reinforcement.grader.grade_range,
        )
        loop = ReinforcementLoop(
            config, prepared.tasks, prepared.validation, fleet, learner, checkpoints, journal, self.outputs.stream
        )
        self.outputs.progress.follow_loop(lambda: loop.next_batch_progress)
        await self._run_loop(loop)
        if prepared.test and self.outcome == "done":
            await learner.release_devices()
            best = await self._start_best_fleet() if loop.has_stopped_early else fleet
            grading = self._grade(best, prepared.test, "test-after", prepared.plan.eval_samples)
            after, _ = await (loop.run_and_check_learner(grading) if best is fleet else grading)
            if before is not None:
                self.outputs.view.stop()
                self.outputs.console.print(before_after_table(before, after))
        if self.outcome == "done":
            await asyncio.to_thread(self._folder.flush)
            if (cheaper := await asyncio.to_thread(find_fewer_calls, self._folder)) is not None:
                self._emit(cheaper)
            steps, overlaps = await asyncio.to_thread(self._folder.metrics), algorithm.max_staleness > 0
            if (compared := measure_utilization(steps, prepared.placement, overlaps=overlaps)) is not None:
                self._emit(compared)

    async def _start_best_fleet(self) -> Fleet:
        """Restart the engines with the best checkpoint if it is not the latest, and return the engines."""
        best, latest = best_checkpoint(self._folder.checkpoints), latest_checkpoint(self._folder.checkpoints)
        if best is not None and best != latest:
            self.outputs.progress.close()
            await self._actors.restart(self._prepared.copy_for_grading(best[0]))
            self.outputs.progress.start(self._actors.fleet.rollout_progress, self._emit)
        return self._actors.fleet

    async def train_supervised(self) -> None:
        checkpoints = self.outputs.checkpoints()
        await self._actors.start()
        prepared, job = self._prepared, self._prepared.job
        loop = SupervisedLoop(
            prepared.plan,
            job.seed,
            prepared.tasks,
            prepared.validation,
            partial(split_conversation, prepared.renderer),
            self._actors.learner,
            checkpoints,
            job.cluster.checkpoint_interval,
            self.outputs.stream,
        )
        await self._run_loop(loop)

    async def _run_loop(self, loop: ReinforcementLoop | SupervisedLoop) -> None:
        """Run a loop until it is done or a signal arrives."""
        if self._resumed:
            await loop.resume({int(metrics["step"]) for metrics in self._folder.metrics()})
        self._emit(PhaseStarted(phase="training"))
        with self._signals.on_first(loop.stop):
            await loop.run()
        if self._signals.count:
            self.outcome = "stopped"

    async def evaluate_file(self, file: str, samples: int) -> None:
        prepared = self._prepared
        tasks = {"training_file": prepared.tasks, "validation_file": prepared.validation, "test_file": prepared.test}
        await self._actors.start()
        self.outputs.progress.totals["test"] = len(tasks[file]) * samples
        self.outputs.progress.start(self._actors.fleet.rollout_progress, self._emit)
        name = f"eval-{file.removesuffix('_file')}"
        evaluation, _ = await self._grade(self._actors.fleet, tasks[file], name, samples)
        self.outputs.view.stop()
        self.outputs.console.print(before_after_table(evaluation, None))

    async def run_readiness_check(self, readiness: ReadinessOptions) -> None:
        """Run the readiness check and write its HTML page and JSON into the run folder."""
        await self._actors.start()
        self.outputs.progress.start(self._actors.fleet.rollout_progress, self._emit)

        async def sample(tasks: Sequence[Task], name: str) -> list[Group]:
            self.outputs.progress.totals["test"] = len(tasks) * readiness.samples
            as_training = self._prepared.job.reinforcement.algorithm.temperature
            _, groups = await self._grade(self._actors.fleet, tasks, name, readiness.samples, as_training)
            return groups

        found = await judge_readiness(self._prepared, self._folder, readiness, sample, self._operator)
        self.readiness = found
        self._emit(ReadinessJudged(verdict=found.verdict, reasons=tuple(found.codes)))
        await asyncio.to_thread(write_page, self._folder, found, self._prepared.job)

    async def close(self) -> None:
        """Stop the actors, upload the remaining checkpoints, flush the sinks and release resources."""
        self.outputs.progress.close()
        await self._actors.shutdown()
        if not self._cut_short:
            await self.outputs.finish_uploads(self._signals)
        await self.outputs.close(self.outcome, self._error)

    async def _grade(
        self, fleet: Fleet, tasks: Sequence[Task], name: str, samples: int, temperature: float | None = None
    ) -> tuple[Evaluation, list[Group]]:
        self._emit(PhaseStarted(phase="grading", detail=f"{len(tasks)} rows ({name})"))
        reinforcement = self._prepared.job.reinforcement
        if temperature is None:
            temperature = reinforcement.algorithm.evaluation_temperature
        grader = reinforcement.grader
        evaluation, groups = await evaluate(
            fleet, tasks, "test", samples, temperature, grader.pass_threshold, grader.grade_range
        )
        self.outputs.stream.emit_groups(name, groups)
        self._emit(Evaluated(name=name, evaluation=evaluation))
        return evaluation, groups
