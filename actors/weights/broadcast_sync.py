"""Weight sync by one broadcast from the learner's rank 0 to all engines, from GPU to GPU: no engine reads the object
store. Generation stands still for the whole transfer, for there is nowhere to lay buckets aside.

What a broadcast cannot do, the transport through the object store does as ever: an engine that joins late catches up
from the last version's buckets. A group is formed anew whenever the engines are others than before, and after each
failure. **Between GPUs, over NCCL, this has never been run**; a member that dies in mid-transfer ends there the process
of every other member after a timeout, the learner's too, and the job goes on from its last checkpoint. Over gloo,
between CPUs, only engines are lost, and replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from actors.runtime.calls import ask
from actors.weights.layout import MAX_BUCKET_BYTES
from actors.weights.sync import SYNC_TIMEOUT_S, Published, WeightSource, WeightSync
from trainer.errors import EngineFailed


class BroadcastSource(WeightSource, Protocol):
    """The learner group's part."""

    async def meeting_point(self) -> str:
        """host:port at rank 0 where a group may meet."""

    async def open_broadcast(self, address: str, size: int) -> None:
        """Let rank 0 join a group of `size`; returns when all have met."""

    async def send(self, bucket: Any) -> None:
        """Let rank 0 broadcast a bucket that it gathered.

        Raises:
            EngineFailed: another member of the group is gone.
        """


class BroadcastSync(WeightSync):
    """`workers_per_engine` is the tensor-parallel size: each worker of an engine is a member."""

    def __init__(
        self, source: BroadcastSource, workers_per_engine: int, max_bucket_bytes: int = MAX_BUCKET_BYTES
    ) -> None:
        super().__init__(source, max_bucket_bytes)
        self._sender = source
        self._workers_per_engine = workers_per_engine
        self._members: list[Any] = []

    async def deliver(self, published: Published, workers: Sequence[Any]) -> list[float | EngineFailed]:
        """As WeightSync.deliver. Where no group comes about, this version goes through the object store."""
        if not workers or not await self._formed(workers):
            return await super().deliver(published, workers)
        layouts = [layout for _, layout in published.buckets]
        receiving = [_settled(_asked(worker.receive.remote(published.version, layouts))) for worker in workers]
        failure, *outcomes = await asyncio.gather(_settled(self._send(published)), *receiving)
        if failure is not None or any(isinstance(outcome, EngineFailed) for outcome in outcomes):
            self._members = []
        return outcomes

    async def _formed(self, workers: Sequence[Any]) -> bool:
        """Whether there is a group of the learner and these engines, by now."""
        if self._members == list(workers):
            return True
        self._members = []
        address, each = await self._sender.meeting_point(), self._workers_per_engine
        size = 1 + each * len(workers)
        infos = [{"address": address, "rank": 1 + each * i, "size": size} for i in range(len(workers))]
        joining = [_asked(worker.init_transport.remote(info)) for worker, info in zip(workers, infos, strict=True)]
        opening = self._sender.open_broadcast(address, size)
        if any(await asyncio.gather(*map(_settled, [opening, *joining]))):
            return False
        self._members = list(workers)
        return True

    async def _send(self, published: Published) -> None:
        for bucket, _ in published.buckets:
            await self._sender.send(bucket)


async def _asked(ref: Any) -> Any:
    return await ask(ref, "an engine", EngineFailed, SYNC_TIMEOUT_S)


async def _settled(work: Awaitable[Any]) -> Any:
    """What came out, or the failure of an engine."""
    try:
        return await work
    except EngineFailed as error:
        return error
