"""Runs of `train`, `eval`, `ready` and `serve` that get a signal, with real processes and files but without Ray.

    python -m tests.support.stopped_runs FOLDER < VARIANTS

reads a JSON list of [command, signal, [state of standard output, state of standard error]] and prints a list with a
`Stopped` for each. The processes are forks of one that has imported everything, since the imports take seconds. Their
command line is a small one around the parts that the real commands share. The signal `nohup` is SIGHUP for a process
that was started by `nohup`, which ignores it and soon ends by itself.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

import typer
from rich.console import Console

from agent_rft.actors.rollout.live_counts import RolloutProgress
from agent_rft.cli.main import handle_global_options, main
from agent_rft.cluster.checks.check_job import CheckedJob
from agent_rft.cluster.planning.layout import ClusterPlan
from agent_rft.cluster.planning.placement import Placement
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.run.driver import claim_run
from agent_rft.cluster.run.job_run import JobRun
from agent_rft.cluster.run.readiness_check import ReadinessOptions
from agent_rft.cluster.run.run_end import record_run_end
from agent_rft.cluster.run.run_outputs import RunOutputs
from agent_rft.cluster.run.sinks.metrics_sink import MetricsSink
from agent_rft.cluster.run.stop_signals import STOPPED_EXIT_CODE, StopSignals, wait_for_signal
from agent_rft.cluster.views.live_view import LiveView
from agent_rft.events import JobEnded
from agent_rft.spec.offload import Offload
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG
from agent_rft.trainer.loop.checkpoint import Checkpoints
from agent_rft.types import Group, GroupRequest, StepReport, TrainSegment
from tests.support.builders import job, plan, task
from tests.support.fakes import FakeLearner, FakeRollouts

Command = Literal["train", "eval", "ready", "serve", "stuck", "closing"]
"""`stuck` goes on after a signal, as a run does whose update takes long; it gets the signal again and again. `closing`
is an evaluation that gets the signal when it is done, while its actors end."""
Output = Literal["open", "closed", "unread"]
"""`closed` as by `>&-`; `unread` is a pipe whose reader has ended, as `| tee` does at Ctrl-C."""
STEPS, STEP_S, SIGNAL_AFTER = 200, 0.02, 2
"""A run that a signal does not stop ends after some seconds."""
NOHUP, NOHUP_STEPS = "nohup", 5
GIVE_UP_S = 60.0
NOT_STOPPED = 98
"""The exit code of a server that has served to its end, as no real one does."""


@dataclass(frozen=True)
class Stopped:
    """How a command ended that got a signal."""

    code: int
    checkpoint: int | None
    outcome: str | None
    has_report: bool
    text: str
    steps: int


class FakeActors:
    """The actors of a run; `notify` is called in the middle of the run."""

    def __init__(self, command: Command, steps: int, notify: Callable[[], None]) -> None:
        self.fleet = _Rollouts(steps, notify) if command != "closing" else _Rollouts(steps)
        self.learner = _Learner(notify)
        self._notify = notify

    async def start(self) -> None: ...

    async def shutdown(self) -> None:
        self._notify()  # what has not notified before is closing
        await asyncio.sleep(STEP_S)


class _Rollouts(FakeRollouts):
    def __init__(self, steps: int, notify: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.rollout_progress = RolloutProgress()
        self._steps = steps
        self._notify = notify

    async def sample(self, request: GroupRequest) -> Group:
        if request.purpose == "test" and self._notify is not None:  # all that `eval` and `ready` sample
            self._notify()
            await asyncio.sleep(self._steps * STEP_S)
        return await super().sample(request)


class _Learner(FakeLearner):
    def __init__(self, notify: Callable[[], None]) -> None:
        super().__init__()
        self._notify = notify

    async def step(self, sequences: Sequence[TrainSegment], version: int) -> StepReport:
        if len(self.batches) == SIGNAL_AFTER:
            self._notify()
        await asyncio.sleep(STEP_S)
        return await super().step(sequences, version)


def prepared(folder: Path, steps: int) -> CheckedJob:
    """A job with rows for each command, as the check would return it."""
    rows = [task(str(i)) for i in range(6)]
    spec = job({}, training_file=str(folder / "train.jsonl"))
    placement = Placement(1, 1, 0, 1, 1, 0, "float32", 8, 0, cast(Offload, "none"), 4096)
    cluster = ClusterPlan(placement, (), (), (), (), (), (), (), (), ())
    return CheckedJob(
        spec, plan(steps=steps, n_epochs=steps, eval_interval=steps), cluster, 4096, cast(Any, None), rows
    )


async def run_command(command: Command, folder: Path, steps: int, notify: Callable[[], None]) -> int:
    """Do the work of a command, which has this many steps, and return its exit code."""
    if command == "stuck":
        with StopSignals() as signals, signals.on_first(lambda: None):
            notify()
            await asyncio.sleep(GIVE_UP_S)
        return 0
    if command == "serve":

        def ready() -> None:
            print("serving", flush=True)
            asyncio.get_running_loop().call_later(steps * STEP_S, _give_up)
            notify()

        await wait_for_signal(ready)
        return 0
    console, path = Console(), folder / "run"
    with StopSignals() as signals, claim_run(path, 0.0, print) as claimed:
        view, metrics = LiveView(steps, console), MetricsSink(None, path)
        kept = RunFolder(path, owner_folder=claimed.folder)
        actors: Any = lambda *given: FakeActors(command, steps, notify)  # noqa: E731
        made = prepared(folder, steps)
        outputs = RunOutputs(made, DEFAULT_CONFIG, None, kept, view, metrics, console, None, reports=False)
        run = JobRun(made, DEFAULT_CONFIG, outputs, signals, False, ["job.yaml"], actors=actors)
        async with record_run_end(run, signals, claimed):
            match command:
                case "train":
                    await run.train()
                case "eval" | "closing":
                    await run.evaluate_file("training_file", 2)
                case "ready":
                    await run.run_readiness_check(ReadinessOptions(samples=2))
    return STOPPED_EXIT_CODE if run.outcome == "stopped" else 0


def _give_up() -> NoReturn:
    os._exit(NOT_STOPPED)


# -- processes ---------------------------------------------------------------------------------------------------------


def stop(command: Command, number: str, outputs: tuple[Output, Output], folder: Path) -> Stopped:
    """Run a command, send it the signal in the middle of its work, and return how it ended."""
    folder.mkdir(parents=True)
    (folder / "train.jsonl").touch()
    ignores = number == NOHUP
    sent = signal.SIGHUP if ignores else signal.Signals[number]
    steps = NOHUP_STEPS if ignores else STEPS
    reads, notifies = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        _child(command, outputs, folder, steps, signal.SIG_IGN if ignores else signal.SIG_DFL, notifies)
    os.close(notifies)
    os.read(reads, 1)
    os.close(reads)
    os.kill(child, sent)
    deadline = time.monotonic() + GIVE_UP_S
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if command == "stuck":
            os.kill(child, sent)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    run = RunFolder(folder / "run")
    saved = [state.step for _, state in Checkpoints(run.checkpoints).list_all()]
    outcomes = [event.event.outcome for event in run.events() if isinstance(event.event, JobEnded)]
    return Stopped(
        os.waitstatus_to_exitcode(ended[1]),
        max(saved, default=None),
        outcomes[-1] if outcomes else None,
        run.report_file.exists(),
        "".join(path.read_text() for path in sorted(folder.glob("*.txt"))),
        steps,
    )


def _child(
    command: Command, outputs: tuple[Output, Output], folder: Path, steps: int, hangup: signal.Handlers, notifies: int
) -> NoReturn:
    """Do as a new process whose standard files are these."""
    try:
        for name, file, state in zip(("stdout", "stderr"), (1, 2), outputs, strict=True):
            _redirect(file, state, folder / f"{name}.txt")
            buffered = -1 if file == 1 else 1  # as Python opens them
            stream = None if state == "closed" else open(file, "w", buffered, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, hangup)  # the tests may run under nohup
        left = [notifies]

        def notify() -> None:
            while left:
                os.close(left.pop())

        def work() -> None:
            raise typer.Exit(asyncio.run(run_command(command, folder, steps, notify)))

        app = typer.Typer()
        app.callback()(handle_global_options)
        app.command(command)(work)
        main(partial(app, [command]))
    finally:
        os._exit(99)


def _redirect(file: int, state: Output, path: Path) -> None:
    os.close(file)
    if state == "open":
        opened = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    elif state == "unread":
        reads, opened = os.pipe()
        os.close(reads)
    else:
        return
    if opened != file:
        os.dup2(opened, file)
        os.close(opened)


if __name__ == "__main__":
    variants = json.load(sys.stdin)
    gc.freeze()  # otherwise a collection in a fork copies all memory
    folder = Path(sys.argv[1])
    print(json.dumps([asdict(stop(*variant, folder / str(i))) for i, variant in enumerate(variants)]))
