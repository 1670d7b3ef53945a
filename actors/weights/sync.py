"""Learner -> engines: each update has a version, goes in size-capped buckets, and pauses generation only for the load.

Buckets travel through Ray's object store to each engine's actor, which lays them into shared memory while generation
goes on; then the engine swaps all of them in at once. The last version's buckets are kept in the object store, so that
a replaced engine catches up at any time without asking the learner, who may be ahead by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from actors.runtime.calls import ask
from actors.weights.layout import MAX_BUCKET_BYTES, Layout, num_bytes
from trainer.errors import EngineFailed

SYNC_TIMEOUT_S = 600.0


class WeightSource(Protocol):
    """The learner group's part."""

    async def bucket_plan(self, max_bytes: int) -> list[Layout]: ...

    async def gather_bucket(self, index: int) -> Any:
        """Object reference of a uint8 array: the bucket's tensors back to back."""


@dataclass(frozen=True, slots=True)
class Published:
    """One version's buckets, by reference."""

    version: int
    buckets: tuple[tuple[Any, Layout], ...]

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes(layout) for _, layout in self.buckets)


class WeightSync:
    """The transport through the object store and shared memory; works on CPUs and GPUs, within and across nodes."""

    def __init__(self, source: WeightSource, max_bucket_bytes: int = MAX_BUCKET_BYTES) -> None:
        self._source = source
        self._max_bucket_bytes = max_bucket_bytes
        self._plan: list[Layout] | None = None
        self.last: Published | None = None

    async def collect(self, version: int) -> Published:
        """Take the learner's weights as `version`, bucket by bucket. No update may run meanwhile."""
        if self._plan is None:
            self._plan = await self._source.bucket_plan(self._max_bucket_bytes)
        self.last = None  # frees the version before: the object store never holds two
        buckets = [(await self._source.gather_bucket(i), layout) for i, layout in enumerate(self._plan)]
        self.last = Published(version, tuple(buckets))
        return self.last

    async def deliver(self, published: Published, workers: Sequence[Any]) -> list[float | EngineFailed]:
        """Load `published` into each worker; for each, its pause in seconds or why it failed."""
        return await asyncio.gather(*(self.catch_up(published, worker) for worker in workers))

    async def catch_up(self, published: Published, worker: Any) -> float | EngineFailed:
        """The same for one worker by itself, at any time."""
        try:
            async with asyncio.timeout(SYNC_TIMEOUT_S):
                for ref, layout in published.buckets:
                    await ask(worker.stage.remote(ref, layout), "an engine", EngineFailed)
                pause: float = await ask(worker.swap.remote(published.version), "an engine", EngineFailed)
        except EngineFailed as error:
            return error
        except TimeoutError:
            return EngineFailed(f"an engine did not load version {published.version} within {SYNC_TIMEOUT_S:g} s")
        return pause
