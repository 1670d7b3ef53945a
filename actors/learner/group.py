"""The learner as the loop uses it: ranks in Ray actors that act as one; if one fails, all are killed.

The group splits a batch into mini-batches and packs them; ranks only compute. A call runs on all ranks or on none.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError, RayTaskError

from agent_rft.actors.learner.rank import LearnerConfig, LearnerRank
from agent_rft.actors.learner.step_limit import StepLimit
from agent_rft.actors.runtime.calls import cannot_start, kind_of
from agent_rft.actors.runtime.exporter import start_telemetry
from agent_rft.actors.runtime.in_flight import Doing
from agent_rft.actors.runtime.ports import free_port
from agent_rft.actors.runtime.recorder import Recorder
from agent_rft.actors.runtime.turns import Turns
from agent_rft.actors.runtime.watchdog import Watched
from agent_rft.actors.weights.checksum import checksum
from agent_rft.actors.weights.layout import TensorInfo
from agent_rft.actors.weights.start_timeout import start_timeout_s
from agent_rft.errors import LearnerFailed, RftError
from agent_rft.trainer.model.batch import AnySequence, MicroBatch, WeightedSequence, pack, split_updates
from agent_rft.types import Converted, StepReport

SCHEDULE_TIMEOUT_S = 900.0
"""Timeout for all ranks to be scheduled and to import."""
GRACE_S = 10.0
"""How long the other ranks may take to fail after the first: the first error is often only that a peer is gone."""
PULSE = "pulse"
"""The concurrency group, with its own thread, in which a rank answers while it computes."""
WRITE = "write"
"""The one in which a rank writes a snapshot while it computes."""


class LearnerGroup:
    """Implements `agent_rft.protocols.Learner`. Made by `start`; `shutdown` must be called at the end.

    Every method raises LearnerFailed if a rank fails or is late, and the group is shut down then: until `restart`, all
    others raise the same. An expected error that all ranks raise (UserError, Halted) is raised unchanged, and the ranks
    stay alive.
    """

    def __init__(self, config: LearnerConfig, actor_options: Sequence[Mapping[str, Any]]) -> None:
        self._config = config
        self._actor_options = actor_options
        self._actors: list[Any] = []
        self._given_up: dict[int, str] = {}
        self._failure: RftError = LearnerFailed("the learner was shut down")
        self._turns: Turns | None = None
        self._limit = StepLimit(config.collective_timeout_s, config.assumed_token_s)
        self._busy_until = 0.0
        """When the limit of a step in progress ends, on the clock of `time.monotonic`."""
        self.incarnation = 0

    @classmethod
    async def start(cls, config: LearnerConfig, actor_options: Sequence[Mapping[str, Any]]) -> LearnerGroup:
        """Start one rank per entry of `actor_options`, which are Ray's (num_cpus, num_gpus, ...)."""
        group = cls(config, actor_options)
        await group.restart()
        return group

    async def restart(self) -> None:
        """Replace the ranks' processes, also those that were lost, by new ones with the model that training began with.

        The weights that were published last must be published again, for engines that start later.
        """
        await self.shutdown()
        if self._turns is not None:
            await self._turns.to_new_learner()
        self._given_up = {}
        self.incarnation += 1
        process: Any = ray.remote(concurrency_groups={PULSE: 1, WRITE: 1})(_RankProcess)
        self._actors = [process.options(**options).remote() for options in self._actor_options]
        try:
            await self.build(self._config)
        except BaseException:  # on cancellation too, so that no rank is left behind
            await self.shutdown()
            raise

    async def build(self, config: LearnerConfig) -> None:
        """Load the model in every rank with `config`, in the existing processes.

        Raises:
            LearnerFailed: A rank was lost, or did not finish within `start_timeout_s` of the model.
            RftError: The model cannot be loaded.
        """
        self._config = config
        self._limit = StepLimit(config.collective_timeout_s, config.assumed_token_s)
        refs = [actor.address.remote() for actor in self._actors]
        addresses = await self._results("being scheduled", refs, SCHEDULE_TIMEOUT_S)
        refs = [a.build.remote(config, rank, self.num_ranks, addresses[0]) for rank, a in enumerate(self._actors)]
        await self._results("loading the model", refs, start_timeout_s(config.model))

    @property
    def num_ranks(self) -> int:
        return len(self._actor_options)

    def share(self, turns: Turns) -> None:
        """From now on compute only in the learner's turn."""
        self._turns = turns

    async def take_turn(self) -> None:
        """Let engines that share the devices sleep, as each method that computes does by itself."""
        if self._turns is not None:
            await self._turns.to_learner()

    async def rest(self) -> None:
        """Let engines that share the devices go on; the next method that computes takes the turn again."""
        if self._turns is not None:
            await self._turns.to_engines()

    async def sleep(self) -> None:
        """See `LearnerRank.sleep`; only for `Turns`."""
        await self._on_all("sleep", self._same())

    async def wake(self) -> None:
        """See `LearnerRank.wake`; only for `Turns`."""
        await self._on_all("wake", self._same())

    async def step(self, sequences: Sequence[AnySequence], version: int) -> StepReport:
        """Train on `sequences`, which are weighted if the method is supervised, with `updates_per_batch` updates."""
        updates = [self._pack(part) for part in split_updates(sequences, self._config.algorithm.updates_per_batch)]
        of_rank = [([update[rank] for update in updates], version) for rank in range(self.num_ranks)]
        num_tokens = _num_tokens(sequences)
        await self.take_turn()
        began, limit_s = time.monotonic(), self._limit.of(num_tokens)
        self._busy_until = began + limit_s
        try:
            report: StepReport = (await self._on_all("step", of_rank, limit_s))[0]
        finally:
            self._busy_until = 0.0
        self._limit.measured(num_tokens, time.monotonic() - began)
        return report

    async def supervised_loss(self, sequences: Sequence[WeightedSequence]) -> float:
        """Weighted cross-entropy per unit of weight, without training."""
        of_rank = [(row,) for row in self._pack(sequences)]
        await self.take_turn()
        loss: float = (await self._on_all("supervised_loss", of_rank, self._limit.of(_num_tokens(sequences))))[0]
        return loss

    async def logprobs(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """Log-probabilities of each token but the first, at temperature 1: [T] -> [T - 1]."""
        logprobs: NDArray[np.float32] = (await self._call("logprobs", self._same(token_ids)))[0]
        return logprobs

    async def bucket_plan(self, max_bytes: int) -> list[list[TensorInfo]]:
        """Name, dtype and shape of the tensors of each bucket; see `LearnerRank.bucket_plan`."""
        plan: list[list[TensorInfo]] = (await self._call("bucket_plan", self._same(max_bytes)))[0]
        return plan

    async def gather_bucket(self, index: int) -> tuple[Any, int]:
        """A reference to the bucket's bytes (uint8), in the object store of rank 0's node, and their checksum."""
        await self.take_turn()
        refs = [actor.put_bucket.remote(index) for actor in self._ranks()]
        reference, number = (await self._results("gather_bucket", refs, self._call_limit_s))[0]
        return reference, number

    async def meeting_point(self) -> str:
        address: str = (await self._results("meeting_point", [self._ranks()[0].address.remote()], GRACE_S))[0]
        return address

    async def open_broadcast(self, address: str, size: int) -> None:
        """Let rank 0 join a broadcast group of `size` at `address`."""
        await self._rank_0("open_broadcast", address, size)

    async def send(self, bucket: Any) -> None:
        """Let rank 0 broadcast a bucket of `gather_bucket`.

        Raises:
            EngineFailed: a member of the group is lost.
        """
        await self._rank_0("send", bucket)

    async def check(self) -> None:
        """Find out whether a rank was lost since the last call. A rank that only hangs is left to the watchdog."""
        refs = [actor.pulse.remote() for actor in self._ranks()]
        await self._results("waiting", refs, self._config.collective_timeout_s)

    async def snapshot(self) -> None:
        """See `LearnerRank.snapshot`."""
        await self._call("snapshot", self._same())

    async def write(self, folder: Path) -> None:
        """See `LearnerRank.write`; the ranks write at the same time, while other methods may be called.

        Raises:
            OSError: A rank's disk is full or read-only. The ranks stay alive.
        """
        refs = [actor.write.remote(_absolute(folder)) for actor in self._ranks()]
        errors: list[OSError | None] = await self._results("write", refs, self._config.collective_timeout_s)
        for error in filter(None, errors):
            raise error

    async def load(self, folder: Path) -> Converted | None:
        """See `LearnerRank.load`."""
        converted: Converted | None = (await self._call("load", self._same(_absolute(folder))))[0]
        return converted

    def watched(self) -> list[Watched]:
        """The ranks, for the watchdog; giving one up kills it, which ends the whole group."""

        def watched(rank: int, actor: Any) -> Watched:
            async def pulse() -> list[Doing]:
                try:
                    doing: list[Doing] = await actor.pulse.remote()
                except RayActorError as error:
                    why = f"the process of learner rank {rank} was lost"
                    raise LearnerFailed(why, ranks=[rank], kind=kind_of(error)) from error
                return doing

            async def give_up(why: str) -> None:
                self._given_up[rank] = why
                ray.kill(actor)

            return Watched(f"learner rank {rank}", pulse, give_up, actor)

        return [watched(rank, actor) for rank, actor in enumerate(self._actors)]

    async def shutdown(self) -> None:
        """Kill all ranks' processes; may be called twice."""
        actors, self._actors = self._actors, []
        for actor in actors:
            ray.kill(actor)
        await asyncio.gather(*(_gone(actor) for actor in actors))

    # -- all ranks as one ----------------------------------------------------------------------------------------------

    def _pack(self, sequences: Sequence[AnySequence]) -> list[list[MicroBatch]]:
        return pack(sequences, num_ranks=self.num_ranks, budget=self._config.micro_batch_tokens)

    def _ranks(self) -> list[Any]:
        """The ranks' actors; if a call beside, such as a checkpoint's, found that one was lost, raises what it did."""
        if not self._actors:
            raise self._failure
        return self._actors

    def _same(self, *arguments: Any) -> list[tuple[Any, ...]]:
        return [arguments] * self.num_ranks

    async def _call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run a method of `LearnerRank` with each rank's arguments, in the learner's turn."""
        await self.take_turn()
        return await self._on_all(method, arguments)

    async def _on_all(
        self, method: str, arguments: Sequence[tuple[Any, ...]], limit_s: float | None = None
    ) -> list[Any]:
        refs = [actor.call.remote(method, *of_rank) for actor, of_rank in zip(self._ranks(), arguments, strict=True)]
        return await self._results(method, refs, self._call_limit_s if limit_s is None else limit_s)

    async def _rank_0(self, method: str, *arguments: Any) -> None:
        ref = self._ranks()[0].call.remote(method, *arguments)
        await self._results(method, [ref], self._call_limit_s)

    @property
    def _call_limit_s(self) -> float:
        """The limit of a call other than a step, which waits in the ranks for a step in progress."""
        return self._config.collective_timeout_s + max(0.0, self._busy_until - time.monotonic())

    async def _results(self, what: str, refs: Sequence[Any], timeout_s: float) -> list[Any]:
        """The results of all ranks; if one fails or is late, all are shut down."""
        tasks = [asyncio.ensure_future(_outcome(ref)) for ref in refs]
        try:
            done, late = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
            if late and any(task.exception() for task in done):
                _, late = await asyncio.wait(late, timeout=GRACE_S)
            errors = {rank: task.exception() for rank, task in enumerate(tasks) if task not in late}
        finally:
            for task in tasks:
                task.cancel()
        failed = {rank: error for rank, error in errors.items() if error is not None}
        if not late and not failed:
            return [task.result() for task in tasks]
        if failed:
            failure = _why(what, failed, len(tasks), self._given_up)
        else:
            ranks = [rank for rank, task in enumerate(tasks) if task in late]
            text = f"learner ranks {ranks} of {len(tasks)} did not finish {what} in {timeout_s:g} s"
            failure = LearnerFailed(text, ranks=ranks)
        if late or not all(isinstance(error, RftError) for error in errors.values()):
            if self._actors:  # else a call beside found it first, and knows better why
                self._failure = failure
                await self.shutdown()
            raise self._failure
        raise failure


class _RankProcess:
    """The Ray actor of one rank; expected errors are returned as values, see `agent_rft.actors.runtime.calls`."""

    _rank: LearnerRank

    def __init__(self) -> None:
        self._doing: dict[str, float] = {}
        self._recorder: Recorder | None = None

    def address(self) -> str:
        """A free host:port on this node: the ranks' rendezvous, if this is rank 0."""
        return f"{ray.util.get_node_ip_address()}:{free_port()}"

    def build(self, config: LearnerConfig, rank: int, world_size: int, address: str) -> RftError | None:
        if self._recorder is None:
            self._recorder = start_telemetry(config.metrics, f"learner-rank-{rank}")
        try:
            self._rank = LearnerRank(config, rank, world_size, address)
        except RftError as error:
            return error
        return None

    def call(self, method: str, *arguments: Any) -> Any:
        with self._at(method):
            try:
                return getattr(self._rank, method)(*arguments)
            except RftError as error:
                return error

    def put_bucket(self, index: int) -> list[Any]:
        """The reference to a copy of the bucket, and its checksum.

        Ray does not resolve a reference in a list: bytes go only to nodes that load them.
        """
        with self._at("gather_bucket"):
            data = self._rank.gather_bucket(index)
            return [] if data is None else [ray.put(data), checksum(torch.from_numpy(data))]

    @ray.method(concurrency_group=WRITE)  # type: ignore[untyped-decorator]
    def write(self, folder: Path) -> OSError | None:
        """Write the snapshot in another thread; the rank outlives a disk that fails."""
        try:
            with self._at("write"):
                self._rank.write(folder)
        except OSError as error:
            return error
        return None

    @ray.method(concurrency_group=PULSE)  # type: ignore[untyped-decorator]
    def pulse(self) -> list[Doing]:
        """What this rank is doing; runs in another thread while it computes."""
        now = time.monotonic()
        return [Doing("", method, now - since) for method, since in self._doing.copy().items()]

    @contextlib.contextmanager
    def _at(self, method: str) -> Iterator[None]:
        """Report `method` to `pulse` while it runs, and record its duration if it succeeds."""
        assert self._recorder is not None  # build() was called before
        self._doing[method] = time.monotonic()
        try:
            yield
            self._recorder.record(f"rank_s/{method}", time.monotonic() - self._doing[method])
        finally:
            del self._doing[method]


def _num_tokens(sequences: Sequence[AnySequence]) -> int:
    return sum(len(sequence.token_ids) for sequence in sequences)


def _absolute(folder: Path) -> Path:
    """The absolute path: ranks may have another working directory."""
    return folder.absolute()


async def _outcome(ref: Any) -> Any:
    outcome = await ref
    if isinstance(outcome, RftError):
        raise outcome
    return outcome


async def _gone(actor: Any) -> None:
    """Wait until Ray reports a killed actor as dead."""
    with contextlib.suppress(RayError, TimeoutError):
        async with asyncio.timeout(GRACE_S):
            await actor.address.remote()


def _why(what: str, failed: Mapping[int, BaseException], num_ranks: int, given_up: Mapping[int, str]) -> RftError:
    """One error for the errors of several ranks; lost processes come first, since the others only lost a peer."""
    for rank, error in failed.items():
        known = error if isinstance(error, RftError) else cannot_start(error, f"learner rank {rank}")
        if known is not None:
            return known
    ranks = sorted(failed, key=lambda rank: not isinstance(failed[rank], RayActorError))
    described = [(rank, given_up.get(rank) or _lost(failed[rank])) for rank in ranks]
    failed_in = [(f"learner rank {rank} of {num_ranks} failed in {what}", why, failed[rank]) for rank, why in described]
    message = "; ".join(f"{who}: {why or _quoted(error)}" for who, why, error in failed_in)
    public = "; ".join(f"{who}: {why}" if why else who for who, why, _ in failed_in)
    return LearnerFailed(message, ranks=ranks, public=public)


def _lost(error: BaseException) -> str:
    lost = isinstance(error, RayActorError)
    return "its process was lost (killed, out of memory, or its node is gone)" if lost else ""


def _quoted(error: BaseException) -> str:
    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"{type(cause).__name__}: {cause}"
