"""Bounded staleness by admission: batches form in the order in which groups were admitted, whatever order they end in.

At version v at most (max_staleness + 1) x batch_size groups that may train are outstanding. A group admitted then
stands within that many places of the front, so it is trained at version v + max_staleness at the latest; and because
places are taken in order, a slow row is trained as often as a quick one. A group that ended without signal gives its
place free at once, not only when its turn comes: else each batch would wait for round after round of fresh groups.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from trainer.types import Group

TRAIN = "train"


@dataclass(slots=True)
class Batch:
    """Groups with signal, and what was passed over on the way to them (None: too few survivors)."""

    trained: list[Group] = field(default_factory=list)
    passed: list[tuple[Group, str | None]] = field(default_factory=list)

    @property
    def all_groups(self) -> list[Group]:
        return [*self.trained, *(group for group, _ in self.passed)]

    @property
    def without_signal(self) -> Counter[str]:
        return Counter(kind for _, kind in self.passed if kind is not None)

    @property
    def num_lost(self) -> int:
        return sum(kind is None for _, kind in self.passed)


class Buffer:
    """Groups between engines and learner.

    `judge(group)` says TRAIN, None (lost: too few survivors) or why a group has no signal. Up to `max_passed` groups
    of a batch are replaced by fresh ones; beyond that the batch goes on smaller.
    """

    def __init__(
        self, batch_size: int, max_staleness: int, max_passed: int, judge: Callable[[Group], str | None]
    ) -> None:
        self.batch_size = batch_size
        self._limit = (max_staleness + 1) * batch_size
        self._max_passed = max_passed
        self._judge = judge
        self._admitted = 0  # index that the next admission gets
        self._begin = 0  # index with which the batch begins that is being formed
        self._front = 0  # index of the next group to take
        self._taken = 0  # places of a batch that is not yet published
        self._done: dict[int, tuple[Group, str | None]] = {}  # with what `judge` said
        self._passed = 0  # groups since `_begin` that ended and do not train
        self._changed = asyncio.Condition()

    @property
    def outstanding(self) -> int:
        """Groups admitted whose weights are not yet published. A batch that is being learned from counts in full, for
        it makes one version.
        """
        return self._admitted - self._begin + self._taken

    def _has_room(self, needed: int) -> bool:
        # A batch that passes over more than `max_passed` groups makes a version out of fewer that train. So no more
        # than that many may be counted as gone, or a group could come to be trained a version too late.
        trainable = self.outstanding - self._passed
        return trainable < min(self._limit, needed) and self.outstanding < self._limit + self._max_passed

    async def admit(self, needed: Callable[[], int]) -> int:
        """Wait until one more group may start and return its index. `needed()`: groups that the job still wants."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_room(needed()))
            self._admitted += 1
            return self._admitted - 1

    async def put(self, group: Group) -> None:
        verdict = self._judge(group)
        async with self._changed:
            self._done[group.request.index] = group, verdict
            self._passed += verdict != TRAIN
            self._changed.notify_all()

    async def next_batch(self) -> Batch:
        """The next groups in admission order; waits for the slowest of them."""
        batch = Batch()
        while len(batch.trained) + max(0, len(batch.passed) - self._max_passed) < self.batch_size:
            async with self._changed:
                await self._changed.wait_for(lambda: self._front in self._done)
                group, verdict = self._done.pop(self._front)
                self._front += 1
                if verdict == TRAIN:
                    batch.trained.append(group)
                else:
                    batch.passed.append((group, verdict))
        async with self._changed:
            self._begin = self._front
            self._passed -= len(batch.passed)
            self._taken = self.batch_size if batch.trained else 0
            self._changed.notify_all()
        return batch

    async def published(self) -> None:
        """The batch that was taken has become weights: its places are free."""
        async with self._changed:
            self._taken = 0
            self._changed.notify_all()
