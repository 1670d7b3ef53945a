"""Buffer of groups between engines and learner.

Batches are formed in the order in which groups were admitted, not in the order in which they finish. This bounds the
staleness of groups.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from agent_rft.types import Group

TRAIN = "train"


@dataclass(slots=True)
class Batch:
    """Groups to train on, and the groups that were skipped before the batch was full.

    `skipped` contains (group, kind) for each skipped group. The kind is a ZeroVarianceKind such as "all_wrong", or None
    if too few of the group's rollouts can be trained on.
    """

    to_train: list[Group] = field(default_factory=list)
    skipped: list[tuple[Group, str | None]] = field(default_factory=list)

    @property
    def all_groups(self) -> list[Group]:
        return [*self.to_train, *(group for group, _ in self.skipped)]

    @property
    def zero_variance(self) -> Counter[str]:
        return Counter(kind for _, kind in self.skipped if kind is not None)

    @property
    def num_lost(self) -> int:
        return sum(kind is None for _, kind in self.skipped)


class GroupBuffer:
    """Holds groups between engines and learner, and bounds the staleness of trained groups.

    A group is outstanding from its admission until the weights that were trained on it are published. Not counting
    skipped groups, at most (max_staleness + 1) x batch_size groups are outstanding. Because batches are formed in the
    order of admission, a group that is admitted at version v is trained at version v + max_staleness at the latest, and
    slow rows are trained as often as fast rows. With batch_size 2 and max_staleness 1:

        version 0    groups 0 1 2 3 are admitted; group 4 has to wait, since 4 = (1 + 1) x 2 are outstanding
                     they finish in the order 2 0 3 1; next_batch() waits for group 1 and returns groups 0 1
        version 1    free_published(): groups 4 5 are admitted; the next batch is 2 3, one version old
        version 2    free_published(): groups 6 7 are admitted; the next batch is 4 5, one version old

    A zero-variance group is skipped, and the batch takes the next group instead. Another group may be admitted as soon
    as the skipped group finishes, before new weights are published. If group 1 in the example had zero variance, group
    4 would be admitted when group 1 finishes, and the first batch would be 0 2.

    `classify(group)` returns TRAIN if the group can be trained, None if too few of its rollouts are trainable, and
    otherwise the kind of zero variance. At most `max_skipped` skipped groups per batch are replaced. Each further
    skipped group makes the batch smaller.
    """

    def __init__(
        self, batch_size: int, max_staleness: int, max_skipped: int, classify: Callable[[Group], str | None]
    ) -> None:
        self.batch_size = batch_size
        self._limit = (max_staleness + 1) * batch_size
        self._max_skipped = max_skipped
        self._classify = classify
        self._admitted = 0  # index of the next group to admit
        self._batch_start = 0  # index of the first group of the batch being formed
        self._next = 0  # index of the next group to take
        self._taken = 0  # number of groups to train on in the batch being formed
        self._unpublished = 0  # size of the batch taken but not yet published
        self._done: dict[int, tuple[Group, str | None]] = {}  # finished groups with their class
        self._skipped = 0  # finished groups since `_batch_start` that will not be trained
        self._changed = asyncio.Condition()

    def start_at(self, index: int) -> None:
        """Start with the group number `index`, so that a resumed run continues counting. Call this before `admit`."""
        self._admitted = self._batch_start = self._next = index

    @property
    def outstanding(self) -> int:
        """Number of groups that were admitted, but whose update is not published yet.

        The batch in training counts as `batch_size` groups, even if the batch contains fewer groups.
        """
        return self._admitted - self._batch_start + self._unpublished

    @property
    def next_batch_progress(self) -> tuple[int, list[int]]:
        """Progress of the next batch: the number of its finished groups, and the indexes of the unfinished groups."""
        candidates = [i for i in range(self._next, self._admitted) if i not in self._done or self._done[i][1] == TRAIN]
        candidates = candidates[: self.batch_size - self._taken]
        waits_for = [index for index in candidates if index not in self._done]
        return self._taken + len(candidates) - len(waits_for), waits_for

    def _can_admit(self, needed: int) -> bool:
        # A batch that skips more than `max_skipped` groups becomes a version with fewer trained groups. So at most that
        # many skipped groups may free their slots, or a group could be trained one version too late.
        trainable = self.outstanding - self._skipped
        return trainable < min(self._limit, needed) and self.outstanding < self._limit + self._max_skipped

    async def admit(self, needed: Callable[[], int]) -> int:
        """Wait until another group may start, and return its index.

        `needed()` returns the number of groups that the job still needs.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._can_admit(needed()))
            self._admitted += 1
            return self._admitted - 1

    async def put(self, group: Group) -> None:
        """Add a finished group."""
        kind = self._classify(group)
        async with self._changed:
            self._done[group.request.index] = group, kind
            self._skipped += kind != TRAIN
            self._changed.notify_all()

    async def next_batch(self) -> Batch:
        """Wait for the next batch of groups in admission order, and return it."""
        batch = Batch()
        while len(batch.to_train) + max(0, len(batch.skipped) - self._max_skipped) < self.batch_size:
            async with self._changed:
                await self._changed.wait_for(lambda: self._next in self._done)
                group, kind = self._done.pop(self._next)
                self._next += 1
                if kind == TRAIN:
                    batch.to_train.append(group)
                    self._taken += 1
                else:
                    batch.skipped.append((group, kind))
        async with self._changed:
            self._batch_start, self._taken = self._next, 0
            self._skipped -= len(batch.skipped)
            self._unpublished = self.batch_size if batch.to_train else 0
            self._changed.notify_all()
        return batch

    async def free_published(self) -> None:
        """Free the slots of the last batch. Call this when the weights that were trained on it are published."""
        async with self._changed:
            self._unpublished = 0
            self._changed.notify_all()
