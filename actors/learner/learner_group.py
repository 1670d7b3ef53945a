"""The learner of the training loop: a group of ranks in Ray actors, which succeed or fail together.

The group splits a batch into mini-batches and packs them; ranks only compute. If one rank fails, all ranks are killed.
The time limit of a step grows with the step's number of tokens (`StepLimit`), so that a long step is not mistaken for a
hang.
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
from agent_rft.actors.runtime.actor_calls import classify_ray_error
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
"""Timeout for scheduling all ranks and importing their modules."""


class LearnerGroup:
    """Implementation of `agent_rft.loop_protocols.Learner`. Create it with `start`, and end it with `shutdown`.

    If a rank fails or exceeds its time limit, the called method raises LearnerFailed and shuts the group down. All
    methods then raise the same error until `restart` is called. If all ranks raise an expected error (UserError,
    Halted), this error is raised unchanged, and the ranks stay alive.
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
        self._kill_reasons: dict[int, str] = {}
        self._failure: RftError = LearnerFailed("the learner was shut down")
        self._gpu_lease: GpuLease | None = None
        self._step_limit = StepLimit(config.collective_timeout_s, config.assumed_token_s)
        self._busy_until = 0.0
        """Deadline of the step in progress, in seconds of `time.monotonic`. 0 if no step is running."""
        self.incarnation = 0

    @classmethod
    async def start(
        cls,
        config: LearnerConfig,
        actor_options: Sequence[Mapping[str, Any]],
        metrics: MetricsAddress | None = None,
    ) -> LearnerGroup:
        """Start one rank for each entry of `actor_options`, which are Ray options such as num_gpus."""
        group = cls(config, actor_options, metrics)
        await group.restart()
        return group

    async def restart(self) -> None:
        """Replace the processes of all ranks with new processes, which load the initial model.

        The caller must then publish the weights again, so that new engines can load them.
        """
        await self.shutdown()
        if self._gpu_lease is not None:
            await self._gpu_lease.give_to_restarted_learner()
        self._kill_reasons = {}
        self.incarnation += 1
        process: Any = ray.remote(concurrency_groups={HEARTBEAT: 1, WRITE: 1})(RankProcess)
        self._actors = [process.options(**options).remote(self._metrics) for options in self._actor_options]
        try:
            await self.build(self._config)
        except BaseException:  # on cancellation too, so that no rank is left behind
            await self.shutdown()
            raise

    async def build(self, config: LearnerConfig) -> None:
        """Load the model that `config` describes in the existing processes of all ranks.

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

    def set_gpu_lease(self, lease: GpuLease) -> None:
        """Set the lease with which the learner and the engines time-share the devices."""
        self._gpu_lease = lease

    async def acquire_devices(self, *, updates: bool = False) -> None:
        """Offload the engines that share the learner's devices. Every method that uses the devices calls this first.

        The engines may discard their weights if the method `updates` the learner's weights.
        """
        if self._gpu_lease is not None:
            await self._gpu_lease.give_to_learner(updates=updates)

    async def release_devices(self) -> None:
        """Reload the engines on the shared devices. The learner's next computation offloads the engines again."""
        if self._gpu_lease is not None:
            await self._gpu_lease.give_to_engines()

    async def offload(self) -> None:
        """Offload all ranks; see `LearnerRank.offload`. Only `GpuLease` calls this."""
        await self._call_all("offload", self._repeat_arguments())

    async def reload(self) -> None:
        """Reload all ranks; see `LearnerRank.reload`. Only `GpuLease` calls this."""
        await self._call_all("reload", self._repeat_arguments())

    async def step(self, sequences: Sequence[AnySequence], version: int) -> StepReport:
        """Train on `sequences` in `updates_per_batch` updates. Supervised training requires WeightedSequences."""
        updates = [self._pack(part) for part in split_updates(sequences, self._config.algorithm.updates_per_batch)]
        rank_arguments = [([update[rank] for update in updates], version) for rank in range(self.num_ranks)]
        num_tokens = _num_tokens(sequences)
        await self.acquire_devices(updates=True)
        began, limit_s = time.monotonic(), self._step_limit.limit_s(num_tokens)
        self._busy_until = began + limit_s
        try:
            report: StepReport = (await self._call_all("step", rank_arguments, limit_s))[0]
        finally:
            self._busy_until = 0.0
        self._step_limit.record(num_tokens, time.monotonic() - began)
        return report

    async def supervised_loss(self, sequences: Sequence[WeightedSequence]) -> float:
        """Return the weighted mean of the cross-entropy, without training on the sequences."""
        rank_arguments = [(row,) for row in self._pack(sequences)]
        await self.acquire_devices()
        loss: float = (
            await self._call_all("supervised_loss", rank_arguments, self._step_limit.limit_s(_num_tokens(sequences)))
        )[0]
        return loss

    async def logprobs(
        self, token_ids: NDArray[np.int32], experts: NDArray[np.integer[Any]] | None = None
    ) -> NDArray[np.float32]:
        """Return log-probabilities of all tokens but the first; see `LearnerRank.logprobs`."""
        arguments = self._repeat_arguments(token_ids, experts)
        logprobs: NDArray[np.float32] = (await self._call_with_devices("logprobs", arguments))[0]
        return logprobs

    async def bucket_layouts(self, max_bytes: int) -> list[list[TensorInfo]]:
        """Return name, dtype and shape of the tensors in each bucket; see `LearnerRank.bucket_plan`."""
        plan: list[list[TensorInfo]] = (
            await self._call_with_devices("bucket_plan", self._repeat_arguments(max_bytes))
        )[0]
        return plan

    async def publish_bucket(self, index: int) -> tuple[Any, int]:
        """Store a bucket in Ray's object store; return a reference to the bucket's bytes (uint8) and their checksum."""
        await self.acquire_devices()
        refs = [actor.put_bucket.remote(index) for actor in self._live_actors()]
        reference, checksum = (await self._wait_for_results("gather_bucket", refs, self._call_limit_s))[0]
        return reference, checksum

    async def choose_address(self) -> str:
        address: str = (
            await self._wait_for_results("meeting_point", [self._live_actors()[0].find_free_address.remote()], GRACE_S)
        )[0]
        return address

    async def open_broadcast(self, address: str, size: int) -> None:
        """Let rank 0 join a broadcast group of `size` processes at `address`."""
        await self._call_rank_0("open_broadcast", address, size)

    async def broadcast_bucket(self, bucket: Any) -> None:
        """Let rank 0 broadcast `bucket`, a reference from `publish_bucket`.

        Raises:
            EngineFailed: A member of the group is lost.
        """
        await self._call_rank_0("broadcast_bucket", bucket)

    async def check_alive(self) -> None:
        """Raise LearnerFailed if a rank was lost since the last call. The watchdog handles ranks that only hang."""
        refs = [actor.heartbeat.remote() for actor in self._live_actors()]
        await self._wait_for_results("waiting", refs, self._config.collective_timeout_s)

    async def snapshot(self) -> None:
        """Copy the training state to host memory; see `LearnerRank.snapshot`."""
        await self._call_with_devices("snapshot", self._repeat_arguments())

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
        converted: LayoutConversion | None = (await self._call_with_devices("load", arguments))[0]
        return converted

    def watch_targets(self) -> list[WatchedActor]:
        """Return the ranks as targets of the watchdog. The watchdog kills a rank that hangs, which ends the group."""

        def watched(rank: int, actor: Any) -> WatchedActor:
            async def heartbeat() -> list[WorkInProgress]:
                try:
                    doing: list[WorkInProgress] = await actor.heartbeat.remote()
                except RayActorError as error:
                    why = f"the process of learner rank {rank} was lost"
                    raise LearnerFailed(why, ranks=[rank], kind=classify_ray_error(error)) from error
                return doing

            async def give_up(why: str) -> None:
                self._kill_reasons[rank] = why
                ray.kill(actor)

            return WatchedActor(f"learner rank {rank}", heartbeat, give_up, actor)

        return [watched(rank, actor) for rank, actor in enumerate(self._actors)]

    async def shutdown(self) -> None:
        """Kill the processes of all ranks; may be called repeatedly."""
        actors, self._actors = self._actors, []
        for actor in actors:
            ray.kill(actor)
        await asyncio.gather(*(_wait_until_dead(actor) for actor in actors))

    # -- all ranks as one ----------------------------------------------------------------------------------------------

    def _pack(self, sequences: Sequence[AnySequence]) -> list[list[MicroBatch]]:
        return pack_sequences(sequences, num_ranks=self.num_ranks, budget=self._config.micro_batch_tokens)

    def _live_actors(self) -> list[Any]:
        """Return the ranks' actors; raise the recorded error if the group was shut down."""
        if not self._actors:
            raise self._failure
        return self._actors

    def _repeat_arguments(self, *arguments: Any) -> list[tuple[Any, ...]]:
        return [arguments] * self.num_ranks

    async def _call_with_devices(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Offload engines that share the devices, then run a method of `LearnerRank` with each rank's arguments."""
        await self.acquire_devices()
        return await self._call_all(method, arguments)

    async def _call_all(
        self, method: str, arguments: Sequence[tuple[Any, ...]], limit_s: float | None = None
    ) -> list[Any]:
        refs = [
            actor.call.remote(method, *rank_arguments)
            for actor, rank_arguments in zip(self._live_actors(), arguments, strict=True)
        ]
        return await self._wait_for_results(method, refs, self._call_limit_s if limit_s is None else limit_s)

    async def _call_rank_0(self, method: str, *arguments: Any) -> None:
        ref = self._live_actors()[0].call.remote(method, *arguments)
        await self._wait_for_results(method, [ref], self._call_limit_s)

    @property
    def _call_limit_s(self) -> float:
        """Time limit, in seconds, of calls other than steps. Includes the time left for a step in progress."""
        return self._config.collective_timeout_s + max(0.0, self._busy_until - time.monotonic())

    async def _wait_for_results(self, what: str, refs: Sequence[Any], timeout_s: float) -> list[Any]:
        """Return the results of all ranks; if a rank fails or exceeds the time limit, shut all ranks down."""
        found = await wait_for_results(what, refs, timeout_s, self._kill_reasons)
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
