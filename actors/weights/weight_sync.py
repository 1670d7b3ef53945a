"""Weight sync from learner to engines: publishes numbered versions, and pauses generation only while engines load.

The buckets of the last version stay in the object store. A replacement engine can load them at any time, even if the
learner's own weights are already newer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ray.exceptions import ObjectLostError

from agent_rft.actors.runtime.actor_calls import call_actor
from agent_rft.actors.weights.weight_bucket import MASK
from agent_rft.errors import EngineFailed, LearnerFailed
from agent_rft.trainer.learner.weight_buckets import MAX_BUCKET_BYTES, BucketLayout, WeightLoadResult, num_bytes

MIN_SYNC_TIMEOUT_S = 600.0
MIN_SYNC_BYTES_PER_S = 50e6
"""Minimum transfer rate of all engines together. A slower sync times out."""


def sync_timeout_s(num_bytes: int, num_engines: int) -> float:
    """Return the timeout in seconds when `num_engines` engines concurrently load `num_bytes` of weights each."""
    return max(MIN_SYNC_TIMEOUT_S, num_bytes * num_engines / MIN_SYNC_BYTES_PER_S)


class WeightsLost(LearnerFailed):
    """The published weights are lost: they were in the memory of a learner rank that is gone."""


class WeightSource(Protocol):
    """Methods of the learner group that weight sync uses."""

    @property
    def incarnation(self) -> int:
        """Number that changes with each restart of the learner. A restart loses all published buckets."""

    async def bucket_layouts(self, max_bytes: int) -> list[BucketLayout]:
        """Return the layout of each bucket; a bucket holds at most `max_bytes`, or a single larger tensor."""
        ...

    async def publish_bucket(self, index: int) -> tuple[Any, int]:
        """Publish a bucket. Return a reference to the bucket as one uint8 array, and the checksum of its tensors."""
        ...


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """Weights of one version: references to the buckets, and the sum of the checksums that the learner computed."""

    version: int
    buckets: tuple[tuple[Any, BucketLayout], ...]
    checksum: int

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes(layout) for _, layout in self.buckets)


class WeightSync:
    """Weight sync through the object store and shared memory, on CPUs and GPUs, within and across nodes.

    One update to version 8, with weights that fit in two buckets:

    1. `collect(8)` frees version 7, and the learner gathers bucket 0, then bucket 1, into the object store.
    2. `deliver` sends both buckets to each engine's actor (`stage_bucket`), which copies them to shared memory. Engines
       still sample, and label new tokens with version 7.
    3. `load_staged(8)` pauses each engine, loads both buckets and resumes. Requests in flight continue, and their next
       tokens are labeled 8.
    4. `deliver` returns each engine's pause in seconds, or its failure. An engine fails if the loaded bytes
       differ from the learner's bytes, or if its model has no parameter for some tensors.
    5. An engine that starts later loads version 8 from the same buckets (`load_into`).
    """

    unloaded_tensors: tuple[str, ...] = ()
    """Tensors that vLLM's model transforms or ignores in every engine; only the canary can check them."""

    def __init__(self, source: WeightSource, max_bucket_bytes: int = MAX_BUCKET_BYTES) -> None:
        self._has_loaded_all = False
        self._source = source
        self._max_bucket_bytes = max_bucket_bytes
        self._incarnation = source.incarnation
        self._bucket_layouts: list[BucketLayout] | None = None
        self._has_collected = False
        self.last_published: PublishedWeights | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the published weights were lost with the learner. New engines then wait for the next version."""
        return self._has_collected and self.last_published is None

    def _on_learner_restart(self) -> None:
        """Discard state that belongs to the lost learner processes."""
        self._bucket_layouts = None

    async def collect(self, version: int) -> PublishedWeights:
        """Put the learner's weights into the object store as `version`; the learner must not train during the call."""
        if self._source.incarnation != self._incarnation:
            self._incarnation = self._source.incarnation
            self._on_learner_restart()
        if self._bucket_layouts is None:
            self._bucket_layouts = await self._source.bucket_layouts(self._max_bucket_bytes)
        self.last_published, self._has_collected = (
            None,
            True,
        )  # frees the previous version, so that the object store never holds two
        gathered = [await self._source.publish_bucket(i) for i in range(len(self._bucket_layouts))]
        buckets = zip([data for data, _ in gathered], self._bucket_layouts, strict=True)
        self.last_published = PublishedWeights(
            version, tuple(buckets), sum(checksum for _, checksum in gathered) & MASK
        )
        return self.last_published

    async def deliver(self, published: PublishedWeights, workers: Sequence[Any]) -> list[float | EngineFailed]:
        """Load `published` into each engine's worker; return each engine's pause in seconds, or its failure."""
        return await asyncio.gather(*(self.load_into(published, worker, len(workers)) for worker in workers))

    async def load_into(self, published: PublishedWeights, worker: Any, num_engines: int = 1) -> float | EngineFailed:
        """Load `published` into one engine's worker; return the engine's pause in seconds, or its failure.

        May be called at any time. `num_engines` is the number of engines that load the weights concurrently.

        Raises:
            WeightsLost: The buckets were lost with the learner process that gathered them.
        """
        timeout_s = sync_timeout_s(published.num_bytes, num_engines)
        try:
            async with asyncio.timeout(timeout_s):
                for ref, layout in published.buckets:
                    await call_actor(worker.stage_bucket.remote(ref, layout), "an engine", EngineFailed, timeout_s)
                swap = worker.load_staged.remote(published.version)
                loaded: WeightLoadResult = await call_actor(swap, "an engine", EngineFailed, timeout_s)
        except ObjectLostError as error:
            if self.last_published is published:
                self.last_published = None
            what = f"the weights of version {published.version} were lost with learner rank 0"
            raise WeightsLost(what, ranks=[0]) from error
        except EngineFailed as error:
            return error
        except TimeoutError:
            return EngineFailed(f"an engine did not load version {published.version} within {timeout_s:.0f} s")
        return self.check_loaded_weights(published, loaded)

    def check_loaded_weights(self, published: PublishedWeights, loaded: WeightLoadResult) -> float | EngineFailed:
        """Return the engine's pause in seconds if the engine loaded the learner's weights, else its failure.

        Unloaded tensors are accepted until an engine loads all tensors. After that, an unloaded tensor is a failure.
        """
        if any(checksum != published.checksum for checksum in loaded.checksums):
            what = f"the learner's checksum for version {published.version}"
            return EngineFailed(f"the checksum of the engine's weights differs from {what}")
        if not loaded.unmatched_tensors:
            self._has_loaded_all = True
        elif self._has_loaded_all:
            names = ", ".join(loaded.unmatched_tensors[:3])
            return EngineFailed(
                f"the engine did not load {len(loaded.unmatched_tensors)} tensors of version {published.version}: "
                f"{names}"
            )
        else:
            self.unloaded_tensors = loaded.unmatched_tensors
        return loaded.pause_s
