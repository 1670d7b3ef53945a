"""Weight sync by broadcast: learner rank 0 sends each bucket to all engines in one transfer.

As in WeightSync, each bucket is first gathered into host memory and stored in Ray's object store. Rank 0 then reads the
bucket, copies it to its device and broadcasts it. The engines receive the bucket on their devices, not through the
object store or shared memory. Generation pauses for the entire transfer, because buckets are not staged.

The learner and the engines form a process group. It is formed again whenever the set of engines has changed, and after
each failure. Engines that join late, or all engines if no group can be formed, load the weights from the object store.

**This has never been run between GPUs, over NCCL.** If a member of the group dies during a transfer, NCCL ends the
processes of all other members after a timeout. This includes the learner, which then restarts. Between CPUs, with gloo,
only engines are lost, and they are replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from agent_rft.actors.runtime.actor_calls import call_actor
from agent_rft.actors.weights.weight_sync import (
    MIN_SYNC_TIMEOUT_S,
    PublishedWeights,
    WeightSource,
    WeightSync,
    sync_timeout_s,
)
from agent_rft.errors import EngineFailed
from agent_rft.trainer.learner.weight_buckets import MAX_BUCKET_BYTES


class BroadcastSource(WeightSource, Protocol):
    """Methods of the learner group that BroadcastSync uses."""

    async def choose_address(self) -> str:
        """Return a free address (host:port) on rank 0's node, at which a process group can be formed."""

    async def open_broadcast(self, address: str, size: int) -> None:
        """Let rank 0 join a process group with `size` members; return when all members have joined."""

    async def broadcast_bucket(self, bucket: Any) -> None:
        """Let rank 0 broadcast `bucket`, a reference from `publish_bucket` to bytes in the object store.

        Raises:
            EngineFailed: A member of the group is lost.
        """


class BroadcastSync(WeightSync):
    """Weight sync that broadcasts the buckets from learner rank 0.

    `workers_per_engine` is the tensor-parallel size: each worker process of an engine is a member of the group.
    """

    def __init__(
        self, source: BroadcastSource, workers_per_engine: int, max_bucket_bytes: int = MAX_BUCKET_BYTES
    ) -> None:
        super().__init__(source, max_bucket_bytes)
        self._broadcast_source = source
        self._workers_per_engine = workers_per_engine
        self._members: list[Any] = []

    def _on_learner_restart(self) -> None:
        super()._on_learner_restart()
        self._members = []

    async def deliver(self, published: PublishedWeights, workers: Sequence[Any]) -> list[float | EngineFailed]:
        """Broadcast `published` to all workers. If no group can be formed, use the object store, as WeightSync does."""
        if not workers or not await self._form_group(workers):
            return await super().deliver(published, workers)
        layouts = [layout for _, layout in published.buckets]
        timeout_s = sync_timeout_s(published.num_bytes, len(workers))
        receiving = [
            _catch_failure(_ask_engine(worker.receive_weights.remote(published.version, layouts), timeout_s))
            for worker in workers
        ]
        failure, *loaded = await asyncio.gather(_catch_failure(self._send_buckets(published)), *receiving)
        if failure is not None or any(isinstance(outcome, EngineFailed) for outcome in loaded):
            self._members = []
        return [
            each if isinstance(each, EngineFailed) else self.check_loaded_weights(published, each) for each in loaded
        ]

    async def _form_group(self, workers: Sequence[Any]) -> bool:
        """Form the group of the learner and these engines if needed; return whether the group exists."""
        if self._members == list(workers):
            return True
        self._members = []
        address, each = await self._broadcast_source.choose_address(), self._workers_per_engine
        size = 1 + each * len(workers)
        infos = [{"address": address, "rank": 1 + each * i, "size": size} for i in range(len(workers))]
        joining = [_ask_engine(worker.init_transport.remote(info)) for worker, info in zip(workers, infos, strict=True)]
        opening = self._broadcast_source.open_broadcast(address, size)
        if any(await asyncio.gather(*map(_catch_failure, [opening, *joining]))):
            return False
        self._members = list(workers)
        return True

    async def _send_buckets(self, published: PublishedWeights) -> None:
        for bucket, _ in published.buckets:
            await self._broadcast_source.broadcast_bucket(bucket)


async def _ask_engine(ref: Any, timeout_s: float = MIN_SYNC_TIMEOUT_S) -> Any:
    return await call_actor(ref, "an engine", EngineFailed, timeout_s)


async def _catch_failure(work: Awaitable[Any]) -> Any:
    """Return the result of `work`, or the EngineFailed that `work` raised."""
    try:
        return await work
    except EngineFailed as error:
        return error
