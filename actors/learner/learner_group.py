"""The learner as the training loop uses it: ranks in Ray actors that succeed or fail together.

The group splits a batch into mini-batches and packs them; ranks only compute. If one rank fails, all are killed. The
time limit of a step grows with its tokens (`StepLimit`), so that a long step is not taken for a hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError

from agent_rft.actors.learner.rank_calls import GRACE_S, CallFailure, StepLimit, wait_for_results
from agent_rft.actors.learner.rank_process import HEARTBEAT, WRITE, RankProcess
from agent_rft.actors.runtime.actor_calls import error_kind
from agent_rft.actors.runtime.gpu_lease import GpuLease
from agent_rft.actors.runtime.rollout_stages import WorkInProgress
from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress
from agent_rft.actors.runtime.watchdog import WatchedActor
from agent_rft.actors.weights.start_timeout import start_timeout_s
from agent_rft.errors import LearnerFailed, RftError
from agent_rft.trainer.learner.rank_config import LearnerConfig
from agent_rft.trainer.learner.weight_buckets import TensorInfo
from agent_rft.trainer.model.micro_batches import (
    AnySequence,
    MicroBatch,
    WeightedSequence,
    pack_sequences,
    split_updates,
)
from agent_rft.types import LayoutConversion, StepReport

SCHEDULE_TIMEOUT_S = 900.0
"""Timeout for scheduling all ranks and their imports."""


class LearnerGroup:
    """Implements `agent_rft.loop_protocols.Learner`. Created by `start`; must be closed with `shutdown`.

    If a rank fails or exceeds its time limit, the method raises LearnerFailed and shuts the group down. All methods
    then raise the same error until `restart`. An expected error that all ranks raise (UserError, Halted) is raised
    unchanged, and the ranks stay alive.
    """

    def __init__(
        self,
        config: LearnerConfig,
        actor_options: Sequence[Mapping[str, Any]],
        metrics: MetricsAddress | None = None,
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._actor_options = actor_options
        self._actors: list[Any] = []
        self._given_up: dict[int, str] = {}
        self._failure: RftError = LearnerFailed("the learner was shut down")
        self._gpu_lease: GpuLease | None = None
        self._step_limit = StepLimit(config.collective_timeout_s, config.assumed_token_s)
        self._busy_until = 0.0
        """End of the time limit of a step in progress, on the clock of `time.monotonic`."""
        self.incarnation = 0

    @classmethod
    async def start(
        cls,
        config: LearnerConfig,
        actor_options: Sequence[Mapping[str, Any]],
        metrics: MetricsAddress | None = None,
    ) -> LearnerGroup:
        """Start one rank per entry of `actor_options`, which are Ray's (num_cpus, num_gpus, ...)."""
        group = cls(config, actor_options, metrics)
        await group.restart()
        return group

    async def restart(self) -> None:
        """Replace the processes of all ranks by new ones, which load the initial model.

        The last published weights must be published again, for engines that start later.
        """
        await self.shutdown()
        if self._gpu_lease is not None:
            await self._gpu_lease.give_to_restarted_learner()
        self._given_up = {}
        self.incarnation += 1
        process: Any = ray.remote(concurrency_groups={HEARTBEAT: 1, WRITE: 1})(RankProcess)
        self._actors = [process.options(**options).remote(self._metrics) for options in self._actor_options]
        try:
            await self.build(self._config)
        except BaseException:  # on cancellation too, so that no rank is left behind
            await self.shutdown()
            raise

    async def build(self, config: LearnerConfig) -> None:
        """Load the model with `config` in the existing processes of all ranks.

        Raises:
            LearnerFailed: A rank was lost, or did not finish within the model's `start_timeout_s`.
            RftError: The model cannot be loaded.
        """
        self._config = config
        self._step_limit = StepLimit(config.collective_timeout_s, config.assumed_token_s)
        refs = [actor.find_free_address.remote() for actor in self._actors]
        addresses = await self._wait_for_results("scheduling", refs, SCHEDULE_TIMEOUT_S)
        refs = [a.build.remote(config, rank, self.num_ranks, addresses[0]) for rank, a in enumerate(self._actors)]
        await self._wait_for_results("loading the model", refs, start_timeout_s(config.model))

    @property
    def num_ranks(self) -> int:
        return len(self._actor_options)

    def set_gpu_lease(self, turns: GpuLease) -> None:
        """Time-share the devices with the engines that `turns` offloads."""
        self._gpu_lease = turns

    async def acquire_devices(self) -> None:
        """Offload engines that share the devices. All methods that compute call this first."""
        if self._gpu_lease is not None:
            await self._gpu_lease.give_to_learner()

    async def release_devices(self) -> None:
        """Reload engines that share the devices; the next method that computes offloads them again."""
        if self._gpu_lease is not None:
            await self._gpu_lease.give_to_engines()

    async def offload(self) -> None:
        """Offload the ranks, see `LearnerRank.offload`; called only by `GpuLease`."""
        await self._call_all("offload", self._repeat_arguments())

    async def reload(self) -> None:
        """Reload the ranks, see `LearnerRank.reload`; called only by `GpuLease`."""
        await self._call_all("reload", self._repeat_arguments())

    async def step(self, sequences: Sequence[AnySequence], version: int) -> StepReport:
        """Train on `sequences` in `updates_per_batch` updates; supervised methods take weighted sequences."""
        updates = [self._pack(part) for part in split_updates(sequences, self._config.algorithm.updates_per_batch)]
        of_rank = [([update[rank] for update in updates], version) for rank in range(self.num_ranks)]
        num_tokens = _num_tokens(sequences)
        await self.acquire_devices()
        began, limit_s = time.monotonic(), self._step_limit.limit_s(num_tokens)
        self._busy_until = began + limit_s
        try:
            report: StepReport = (await self._call_all("step", of_rank, limit_s))[0]
        finally:
            self._busy_until = 0.0
        self._step_limit.record(num_tokens, time.monotonic() - began)
        return report

    async def supervised_loss(self, sequences: Sequence[WeightedSequence]) -> float:
        """Return the weighted cross-entropy per unit of weight, without training."""
        of_rank = [(row,) for row in self._pack(sequences)]
        await self.acquire_devices()
        loss: float = (
            await self._call_all("supervised_loss", of_rank, self._step_limit.limit_s(_num_tokens(sequences)))
        )[0]
        return loss

    async def logprobs(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return log-probabilities of all tokens but the first, at temperature 1: [T] -> [T - 1]."""
        logprobs: NDArray[np.float32] = (await self._call("logprobs", self._repeat_arguments(token_ids)))[0]
        return logprobs

    async def bucket_layouts(self, max_bytes: int) -> list[list[TensorInfo]]:
        """Return name, dtype and shape of each bucket's tensors; see `LearnerRank.bucket_plan`."""
        plan: list[list[TensorInfo]] = (await self._call("bucket_plan", self._repeat_arguments(max_bytes)))[0]
        return plan

    async def publish_bucket(self, index: int) -> tuple[Any, int]:
        """Return a reference to the bucket's bytes (uint8) in the object store of rank 0's node, and their checksum."""
        await self.acquire_devices()
        refs = [actor.put_bucket.remote(index) for actor in self._live_actors()]
        reference, number = (await self._wait_for_results("gather_bucket", refs, self._call_limit_s))[0]
        return reference, number

    async def choose_address(self) -> str:
        address: str = (
            await self._wait_for_results("meeting_point", [self._live_actors()[0].find_free_address.remote()], GRACE_S)
        )[0]
        return address

    async def open_broadcast(self, address: str, size: int) -> None:
        """Let rank 0 join a broadcast group of `size` processes at `address`."""
        await self._call_rank_0("open_broadcast", address, size)

    async def broadcast_bucket(self, bucket: Any) -> None:
        """Let rank 0 broadcast a bucket from `gather_bucket`.

        Raises:
            EngineFailed: A member of the group is lost.
        """
        await self._call_rank_0("send", bucket)

    async def check_alive(self) -> None:
        """Raise LearnerFailed if a rank was lost since the last call. The watchdog handles ranks that only hang."""
        refs = [actor.heartbeat.remote() for actor in self._live_actors()]
        await self._wait_for_results("waiting", refs, self._config.collective_timeout_s)

    async def snapshot(self) -> None:
        """Copy the training state to host memory; see `LearnerRank.snapshot`."""
        await self._call("snapshot", self._repeat_arguments())

    async def write_snapshot(self, folder: Path) -> None:
        """Write the snapshot on all ranks concurrently; other methods may be called during the write.

        Raises:
            OSError: A rank's disk is full or read-only. The ranks stay alive.
        """
        refs = [actor.write_snapshot.remote(_absolute_path(folder)) for actor in self._live_actors()]
        errors: list[OSError | None] = await self._wait_for_results("write", refs, self._config.collective_timeout_s)
        for error in filter(None, errors):
            raise error

    async def load(self, folder: Path) -> LayoutConversion | None:
        """Load a checkpoint; see `LearnerRank.load`."""
        arguments = self._repeat_arguments(_absolute_path(folder))
        converted: LayoutConversion | None = (await self._call("load", arguments))[0]
        return converted

    def watch_targets(self) -> list[WatchedActor]:
        """Return the ranks for the watchdog, which kills a rank that hangs and thereby ends the group."""

        def watched(rank: int, actor: Any) -> WatchedActor:
            async def heartbeat() -> list[WorkInProgress]:
                try:
                    doing: list[WorkInProgress] = await actor.heartbeat.remote()
                except RayActorError as error:
                    why = f"the process of learner rank {rank} was lost"
                    raise LearnerFailed(why, ranks=[rank], kind=error_kind(error)) from error
                return doing

            async def give_up(why: str) -> None:
                self._given_up[rank] = why
                ray.kill(actor)

            return WatchedActor(f"learner rank {rank}", heartbeat, give_up, actor)

        return [watched(rank, actor) for rank, actor in enumerate(self._actors)]

    async def shutdown(self) -> None:
        """Kill all ranks' processes; may be called twice."""
        actors, self._actors = self._actors, []
        for actor in actors:
            ray.kill(actor)
        await asyncio.gather(*(_wait_until_dead(actor) for actor in actors))

    # -- all ranks as one ----------------------------------------------------------------------------------------------

    def _pack(self, sequences: Sequence[AnySequence]) -> list[list[MicroBatch]]:
        return pack_sequences(sequences, num_ranks=self.num_ranks, budget=self._config.micro_batch_tokens)

    def _live_actors(self) -> list[Any]:
        """Return the ranks' actors; raise the recorded error if a concurrent call found that a rank was lost."""
        if not self._actors:
            raise self._failure
        return self._actors

    def _repeat_arguments(self, *arguments: Any) -> list[tuple[Any, ...]]:
        return [arguments] * self.num_ranks

    async def _call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Offload engines that share the devices, then run a method of `LearnerRank` with each rank's arguments."""
        await self.acquire_devices()
        return await self._call_all(method, arguments)

    async def _call_all(
        self, method: str, arguments: Sequence[tuple[Any, ...]], limit_s: float | None = None
    ) -> list[Any]:
        refs = [
            actor.call.remote(method, *of_rank) for actor, of_rank in zip(self._live_actors(), arguments, strict=True)
        ]
        return await self._wait_for_results(method, refs, self._call_limit_s if limit_s is None else limit_s)

    async def _call_rank_0(self, method: str, *arguments: Any) -> None:
        ref = self._live_actors()[0].call.remote(method, *arguments)
        await self._wait_for_results(method, [ref], self._call_limit_s)

    @property
    def _call_limit_s(self) -> float:
        """The time limit of calls other than steps: they wait in the ranks for a step in progress."""
        return self._config.collective_timeout_s + max(0.0, self._busy_until - time.monotonic())

    async def _wait_for_results(self, what: str, refs: Sequence[Any], timeout_s: float) -> list[Any]:
        """Return the results of all ranks; if a rank fails or exceeds the time limit, shut all ranks down."""
        found = await wait_for_results(what, refs, timeout_s, self._given_up)
        if not isinstance(found, CallFailure):
            return found
        if not found.is_fatal:
            raise found.error
        if self._actors:  # else a concurrent call already recorded the cause
            self._failure = found.error
            await self.shutdown()
        raise self._failure


def _num_tokens(sequences: Sequence[AnySequence]) -> int:
    return sum(len(sequence.token_ids) for sequence in sequences)


def _absolute_path(folder: Path) -> Path:
    """Return the absolute path: ranks may have a different working directory."""
    return folder.absolute()


async def _wait_until_dead(actor: Any) -> None:
    """Wait until Ray reports a killed actor as dead."""
    with contextlib.suppress(RayError, TimeoutError):
        async with asyncio.timeout(GRACE_S):
            await actor.find_free_address.remote()
