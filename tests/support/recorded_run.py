"""A run of the real loop, journal, checkpoints, run folder and learner rank on recorded rollouts, to be killed.

It runs in a process of its own and reports each phase as it is entered and left, so that another process can kill it in
the middle of one. What it did is appended to `did.jsonl`, which survives the kill.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np

from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.cluster.run.sinks.event_stream import EventStream
from agent_rft.spec.job import AlgorithmSpec, CheckpointInterval
from agent_rft.trainer.learner.learner_rank import LearnerRank
from agent_rft.trainer.learner.rank_config import LearnerConfig
from agent_rft.trainer.loop.checkpoint import Checkpoints, LoopState
from agent_rft.trainer.loop.group_buffer import Batch
from agent_rft.trainer.loop.journal import Journal
from agent_rft.trainer.loop.reinforcement import LoopConfig, ReinforcementLoop
from agent_rft.trainer.model.micro_batches import pack_sequences
from agent_rft.types import Group, GroupRequest, Segment, StepReport, SyncReport, TrainSegment
from tests.support.builders import group, plan, rollout, task

Phase = Literal["write-ahead", "update", "sync", "snapshot", "write", "rename", "sample"]
STEPS, BATCH, ROWS = 9, 2, 8
VOCABULARY = 250


def live(folder: Path, model: Path, reports: Connection) -> None:
    """Run, or go on with what is in `folder`, to the end. Reports (phase, entered) and at the end None."""
    asyncio.run(_live(folder, model, reports))
    reports.send(None)
    reports.close()
    os._exit(0)  # skips seconds of freeing modules


async def _live(folder: Path, model: Path, reports: Connection) -> None:
    run = RunFolder(folder)
    resumed = run.can_resume
    did = _Did(folder / "did.jsonl", reports)
    # Every other rollout file would be written by another thread, at another time in each run.
    stream = EventStream("recorded", [run], [run])
    config = LoopConfig(
        plan(num_rows=ROWS, batch_size=BATCH, n_epochs=4, steps=STEPS, eval_interval=4),
        AlgorithmSpec(max_staleness=1, kl_coef=0.0),
        seed=3,
        pass_threshold=1.0,
        checkpoint_interval=CheckpointInterval(minutes=None, steps=3),
    )
    learner = _Learner(model, did)
    loop = ReinforcementLoop(
        config,
        [task(str(i)) for i in range(ROWS)],
        [],
        _Recorded(learner, did),
        learner,
        _Checkpoints(folder / "checkpoints", did),
        _Journal(folder / "journal", did),
        stream,
    )
    if resumed:
        await loop.resume({int(metrics["step"]) for metrics in run.metrics()})
    state = await loop.run()
    run.close()
    did.note("end", step=state.step, weights=learner.digest())


class _Did:
    """What the run did, in a file, and in which phase it is."""

    def __init__(self, path: Path, reports: Connection) -> None:
        self._path = path
        self._reports = reports

    def note(self, kind: str, **values: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"kind": kind, **values}) + "\n")

    def enter(self, phase: Phase) -> None:
        self._reports.send((phase, True))

    def leave(self, phase: Phase) -> None:
        self._reports.send((phase, False))

    @contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        self.enter(phase)
        yield
        self.leave(phase)


class _Learner:
    """One rank in this process; what it does is noted."""

    def __init__(self, model: Path, did: _Did) -> None:
        self._rank = LearnerRank(LearnerConfig(model=model, steps=STEPS, learning_rate=1e-3, lr_schedule="linear"))
        self._did = did

    async def step(self, sequences: Sequence[TrainSegment], version: int) -> StepReport:
        with self._did.within("update"):
            [micro_batches] = pack_sequences(sequences, num_ranks=1, budget=512)
            report = self._rank.step([micro_batches], version)
        trained = hashlib.blake2b(b"".join(s.token_ids.tobytes() for s in sequences), digest_size=8).hexdigest()
        loss, norm = report.metrics["loss"].hex(), report.metrics["grad_norm"].hex()
        self._did.note("update", version=version, trained=trained, loss=loss, norm=norm)
        return report

    async def release_devices(self) -> None:
        pass

    async def check_alive(self) -> None:
        """It is this process."""

    async def snapshot(self) -> None:
        with self._did.within("snapshot"):
            self._rank.snapshot()

    async def write_snapshot(self, folder: Path) -> None:
        with self._did.within("write"):
            await asyncio.to_thread(self._rank.write_snapshot, folder)
        self._did.enter("rename")

    async def load(self, folder: Path) -> None:
        self._rank.load(folder)

    async def restart(self) -> None:
        raise AssertionError("no rank is lost here")

    def digest(self) -> str:
        """A digest of all weights, bit by bit."""
        found = hashlib.blake2b(digest_size=16)
        for index in range(len(self._rank.bucket_plan(1 << 16))):
            bucket = self._rank.gather_bucket(index)
            assert bucket is not None
            found.update(bucket.tobytes())
        return found.hexdigest()


class _Recorded:
    """Rollouts that depend on the group's number only; some groups have no signal, some take longer."""

    def __init__(self, learner: _Learner, did: _Did) -> None:
        self._learner = learner
        self._did = did

    async def sample(self, request: GroupRequest) -> Group:
        self._did.note("sample", index=request.index, row=request.task.row_id, attempt=request.attempt)
        await asyncio.sleep(0.002 * (request.index * 7 % 5))
        return recorded(request)

    async def get_counts(self) -> dict[str, float]:
        return {}

    async def has_outage(self) -> bool:
        return False

    async def publish(self, version: int) -> SyncReport:
        with self._did.within("sync"):
            self._did.note("publish", version=version, weights=self._learner.digest())
        return SyncReport(version, 0.0, 0.0, 0)


class _Journal(Journal):
    def __init__(self, folder: Path, did: _Did) -> None:
        super().__init__(folder)
        self._did = did

    async def add_group(self, group: Group) -> None:
        with self._did.within("sample"):
            await super().add_group(group)

    async def add_batch(self, batch: Batch) -> None:
        with self._did.within("write-ahead"):
            await super().add_batch(batch)


class _Checkpoints(Checkpoints):
    def __init__(self, folder: Path, did: _Did) -> None:
        super().__init__(folder)
        self._did = did

    async def save(self, state: LoopState, write: Callable[[Path], Any]) -> Path:
        path = await super().save(state, write)
        self._did.leave("rename")
        return path


def recorded(request: GroupRequest) -> Group:
    """The rollouts of a group: segments and grades from its number. Every other rollout has two segments."""
    random = np.random.default_rng(request.index)
    grades = [1.0] * request.size if request.index % 5 == 3 else [float(i % 2) for i in range(request.size)]
    made = group(request, grades)
    rollouts = []
    for sample, grade in enumerate(grades):
        segments = tuple(_segment(random) for _ in range(1 + sample % 2))
        rollouts.append(rollout(request, sample, grade, segments=segments))
    return replace(made, rollouts=tuple(rollouts))


def _segment(random: np.random.Generator) -> Segment:
    length = int(random.integers(12, 40))
    mask = np.arange(length) >= 6
    return Segment(
        token_ids=random.integers(3, VOCABULARY, length).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, random.normal(-5.56, 0.1, length), 0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
    )
