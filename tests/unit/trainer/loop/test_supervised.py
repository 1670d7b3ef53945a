"""The supervised loop with fakes: what a kill, a stop or a lost learner costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_rft.chat.conversation import SupervisedSample
from agent_rft.errors import LearnerFailed
from agent_rft.events import CheckpointSaved, LossEvaluated
from agent_rft.metrics import find_metric
from agent_rft.spec.job import CheckpointInterval
from agent_rft.trainer.loop.checkpoint import Checkpoints
from agent_rft.trainer.loop.learner_restarts import PAUSES_S
from agent_rft.trainer.loop.supervised import SupervisedLoop
from agent_rft.trainer.model.micro_batches import WeightedSequence
from agent_rft.types import StepReport
from tests.support.builders import plan, task
from tests.support.fakes import FakeLearner, FakeSink
from tests.support.loops import EACH_STEP, NEVER, Killed, counting

EVERY_THIRD = CheckpointInterval(minutes=None, steps=3)


def samples(messages: Sequence[dict[str, Any]], tools: Sequence[Any]) -> list[SupervisedSample]:
    """The row's number, twice."""
    number = int(messages[0]["content"])
    return [SupervisedSample([number, number], [False, True])]


class Learner(FakeLearner):
    """`trouble(step)` is raised in an update; its validation loss is the number of its updates."""

    def __init__(self, trouble: Callable[[int], Exception | None] = lambda step: None) -> None:
        super().__init__(self._reported)
        self._trouble = trouble

    def _reported(self, step: int) -> StepReport:
        if (error := self._trouble(step)) is not None:
            raise error
        return StepReport({"loss": 0.5, "trained_tokens": 2.0}, applied=True)

    async def step(self, sequences: Sequence[Any], version: int) -> StepReport:
        return await super().step(sequences, version)

    async def supervised_loss(self, sequences: Sequence[WeightedSequence]) -> float:
        self.alive()
        return float(len(self.weights))


class Run:
    def __init__(self, folder: Path, learner: Learner | None = None, **changes: Any) -> None:
        self.learner = learner or Learner()
        self.sink, self.sleeps = FakeSink(), list[float]()
        self.checkpoints = Checkpoints(folder / "checkpoints")
        interval = changes.pop("interval", EVERY_THIRD)
        tasks = [task(str(i), str(i)) for i in range(6)]
        self.loop = SupervisedLoop(
            plan(**{"num_rows": 6, "steps": 9, "n_epochs": 3, "batch_size": 2, "eval_interval": 4} | changes),
            7,
            tasks,
            [task("6", "6")],
            samples,
            self.learner,
            self.checkpoints,
            interval,
            self.sink,
            counting(self.sleeps),
        )

    @property
    def steps(self) -> list[float]:
        return [metrics["step"] for metrics in self.sink.steps]


def killed_in(update: int) -> Learner:
    return Learner(lambda step: Killed() if step == update else None)


async def undisturbed(folder: Path) -> list[tuple[int, list[list[int]]]]:
    run = Run(folder)
    await run.loop.run()
    return run.learner.weights


async def test_each_epoch_trains_each_row_once_and_validates_at_each_interval(tmp_path: Path) -> None:
    run = Run(tmp_path)
    state = await run.loop.run()
    assert (state.step, state.version, state.trained_tokens) == (9, 9, 18)
    rows = [tokens[0] for _, batch in run.learner.weights for tokens in batch]
    assert all(sorted(rows[start : start + 6]) == list(range(6)) for start in (0, 6, 12))
    assert [(event.step, event.loss) for event in run.sink.of(LossEvaluated)] == [(4, 4.0), (8, 8.0), (9, 9.0)]
    saved = [(event.step, event.is_servable, event.valid_reward) for event in run.sink.of(CheckpointSaved)]
    assert saved == [(3, False, None), (4, True, -4.0), (7, False, None), (8, True, -8.0), (9, True, -9.0)]
    names = {name for metrics in run.sink.steps for name in metrics}
    assert [name for name in sorted(names) if find_metric(name) is None] == []


@pytest.mark.parametrize("interval", [NEVER, EACH_STEP, EVERY_THIRD])
async def test_a_run_that_is_killed_again_and_again_trains_the_same_batches(
    tmp_path: Path, interval: CheckpointInterval
) -> None:
    for update in (2, 5, 1, 6, 3):
        run = Run(tmp_path / "killed", killed_in(update), interval=interval)
        await run.loop.resume()
        with suppress(Killed):
            await run.loop.run()
    run = Run(tmp_path / "killed", interval=interval)
    await run.loop.resume()
    await run.loop.run()
    assert run.learner.weights == await undisturbed(tmp_path / "calm")


@pytest.mark.parametrize("lost_in", ["load", "step", "snapshot", "write", "supervised_loss"])
async def test_a_lost_learner_goes_back_to_the_checkpoint_and_trains_the_same(tmp_path: Path, lost_in: str) -> None:
    class Mortal(Learner):
        async def load(self, folder: Path) -> None:
            self.maybe("load")
            await super().load(folder)

        async def step(self, sequences: Sequence[Any], version: int) -> StepReport:
            self.maybe("step", version == 5)
            return await super().step(sequences, version)

        async def snapshot(self) -> None:
            self.maybe("snapshot", len(self.weights) > 4)
            await super().snapshot()

        async def write_snapshot(self, folder: Path) -> None:
            self.maybe("write", len(self.weights) > 8)
            await super().write_snapshot(folder)

        async def supervised_loss(self, sequences: Sequence[WeightedSequence]) -> float:
            self.maybe("supervised_loss")
            return await super().supervised_loss(sequences)

        def maybe(self, what: str, now: bool = True) -> None:
            if what == lost_in and now and not self.restarts:
                self.lose(LearnerFailed("its process was lost"))
                self.alive()

    with pytest.raises(Killed):
        await Run(tmp_path / "lost", killed_in(4)).loop.run()
    run = Run(tmp_path / "lost", Mortal())
    await run.loop.resume(reported_steps={1, 2, 3})
    assert (await run.loop.run()).step == 9
    assert (run.learner.restarts, run.sleeps) == (1, [1.0])
    assert run.learner.weights == await undisturbed(tmp_path / "calm")
    assert set(run.steps) == set(range(4, 10))
    assert [(state.step, state.is_servable) for _, state in run.checkpoints.list_all()] == [
        (4, True),
        (8, True),
        (9, True),
    ]


async def test_a_learner_that_never_gets_further_ends_the_job_wherever_it_is_lost(tmp_path: Path) -> None:
    """Each restart goes back to the start: what is repeated does not count."""
    lost_in = iter([9, 14, 17, 22, 99])
    lost = [next(lost_in)]

    def trouble(step: int) -> Exception | None:
        if step < lost[0]:
            return None
        lost[0] = next(lost_in)
        return LearnerFailed(f"lost in update {step}")

    run = Run(tmp_path, Learner(trouble), eval_interval=100, interval=NEVER)
    with pytest.raises(LearnerFailed, match=r"failed 4 times .* the first error was: lost in update 9"):
        await run.loop.run()
    assert run.sleeps == list(PAUSES_S)


async def test_a_stop_offers_the_last_step_also_after_a_checkpoint_of_the_interval(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        await Run(tmp_path, killed_in(4)).loop.run()
    run = Run(tmp_path, interval=NEVER)
    run.learner._trouble = lambda step: run.loop.stop()
    await run.loop.resume()
    state = await run.loop.run()
    assert (
        [(state.step, state.is_servable) for _, state in run.checkpoints.list_all()]
        == [(state.step, True)]
        == [(4, True)]
    )
