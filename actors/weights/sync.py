"""Weight sync, learner to engines: each update has a version and pauses generation only while weights are loaded.

The last version's buckets stay in the object store, so that a replaced engine can catch up at any time without the
learner, whose own weights may be newer by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ray.exceptions import ObjectLostError

from agent_rft.actors.runtime.calls import ask
from agent_rft.actors.weights.bucket import MASK
from agent_rft.errors import EngineFailed, LearnerFailed
from agent_rft.trainer.learner.layout import MAX_BUCKET_BYTES, Layout, Loaded, num_bytes

MIN_SYNC_TIMEOUT_S = 600.0
MIN_SYNC_BYTES_PER_S = 50e6
"""The slowest transfer to one engine that counts as working; others may have to wait for it on the same network."""


def sync_timeout_s(num_bytes: int, num_engines: int) -> float:
    """Return how long loading `num_bytes` of weights may take while `num_engines` load them."""
    return max(MIN_SYNC_TIMEOUT_S, num_bytes * num_engines / MIN_SYNC_BYTES_PER_S)


class WeightsLost(LearnerFailed):
    """The published weights were in the memory of a learner rank that is gone."""


class WeightSource(Protocol):
    """What weight sync needs of the learner group."""

    @property
    def incarnation(self) -> int:
        """Another number after each restart. Buckets are lost with the processes that gathered them."""

    async def bucket_plan(self, max_bytes: int) -> list[Layout]:
        """The layout of each bucket; a bucket holds at most `max_bytes`, or a single larger tensor."""
        ...

    async def gather_bucket(self, index: int) -> tuple[Any, int]:
        """Object reference of a uint8 array, the bucket's tensors back to back, and its checksum."""
        ...


@dataclass(frozen=True, slots=True)
class Published:
    """One version's buckets, by reference; `checksum` is the sum of those that the learner gathered."""

    version: int
    buckets: tuple[tuple[Any, Layout], ...]
    checksum: int

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes(layout) for _, layout in self.buckets)


class WeightSync:
    """The transport through the object store and shared memory; works on CPUs and GPUs, within and across nodes.

    One update to version 8, with weights that fit two buckets:

    1. `collect(8)` frees version 7, and the learner gathers bucket 0, then bucket 1, into the object store.
    2. `deliver` sends both to each engine's actor (`stage`), which copies them to shared memory. Engines still sample,
       and new tokens are labelled 7.
    3. `swap(8)`: each engine pauses, loads both buckets at once and resumes. Requests in flight continue: their next
       tokens are labelled 8.
    4. `deliver` returns each engine's pause in seconds, or its failure; it fails, too, if it loaded other bytes than
       the learner gathered, or if its parameters did not take all tensors.
    5. An engine that is started later loads version 8 by `catch_up`, from the same buckets.
    """

    untaken: tuple[str, ...] = ()
    """Tensors that vLLM's model transforms or ignores in every engine: for these only the canary can tell."""

    def __init__(self, source: WeightSource, max_bucket_bytes: int = MAX_BUCKET_BYTES) -> None:
        self._all_taken = False
        self._source = source
        self._max_bucket_bytes = max_bucket_bytes
        self._incarnation = source.incarnation
        self._plan: list[Layout] | None = None
        self._collected = False
        self.last: Published | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the published weights were lost with the learner; an engine that starts waits until they are back."""
        return self._collected and self.last is None

    def _learner_restarted(self) -> None:
        """Forget what the lost processes had."""
        self._plan = None

    async def collect(self, version: int) -> Published:
        """Put the learner's weights into the object store as `version`; the learner must not train meanwhile."""
        if self._source.incarnation != self._incarnation:
            self._incarnation = self._source.incarnation
            self._learner_restarted()
        if self._plan is None:
            self._plan = await self._source.bucket_plan(self._max_bucket_bytes)
        self.last, self._collected = None, True  # frees the previous version: the object store never holds two
        gathered = [await self._source.gather_bucket(i) for i in range(len(self._plan))]
        buckets = zip([data for data, _ in gathered], self._plan, strict=True)
        self.last = Published(version, tuple(buckets), sum(checksum for _, checksum in gathered) & MASK)
        return self.last

    async def deliver(self, published: Published, workers: Sequence[Any]) -> list[float | EngineFailed]:
        """Load `published` into each worker; returns each one's pause in seconds, or its failure."""
        return await asyncio.gather(*(self.catch_up(published, worker, len(workers)) for worker in workers))

    async def catch_up(self, published: Published, worker: Any, num_engines: int = 1) -> float | EngineFailed:
        """Load `published` into one worker, at any time, while `num_engines` load it.

        Raises:
            WeightsLost: The buckets are gone, with the learner's process that gathered them.
        """
        timeout_s = sync_timeout_s(published.num_bytes, num_engines)
        try:
            async with asyncio.timeout(timeout_s):
                for ref, layout in published.buckets:
                    await ask(worker.stage.remote(ref, layout), "an engine", EngineFailed, timeout_s)
                swap = worker.swap.remote(published.version)
                loaded: Loaded = await ask(swap, "an engine", EngineFailed, timeout_s)
        except ObjectLostError as error:
            if self.last is published:
                self.last = None
            what = f"the weights of version {published.version} were lost with learner rank 0"
            raise WeightsLost(what, ranks=[0]) from error
        except EngineFailed as error:
            return error
        except TimeoutError:
            return EngineFailed(f"an engine did not load version {published.version} within {timeout_s:.0f} s")
        return self.compared(published, loaded)

    def compared(self, published: Published, loaded: Loaded) -> float | EngineFailed:
        """The pause of an engine that loaded all of the learner's weights, else its failure.

        A tensor that no engine's parameters ever took as it is says nothing about this engine.
        """
        if any(checksum != published.checksum for checksum in loaded.checksums):
            return EngineFailed(f"it loaded other weights than the learner's version {published.version}")
        if not loaded.missed:
            self._all_taken = True
        elif self._all_taken:
            names = ", ".join(loaded.missed[:3])
            return EngineFailed(f"version {published.version} of {len(loaded.missed)} tensors was not loaded: {names}")
        else:
            self.untaken = loaded.missed
        return loaded.pause_s
