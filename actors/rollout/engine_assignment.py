"""Assignment of rollouts to engines, which balances load and keeps each group on as few engines as possible.

All rollouts of a group have the same prompt. An engine computes the prompt once, and reads it from its prefix cache for
the group's other rollouts. Each additional engine has to compute the prompt again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from agent_rft.actors.rollout.episode import RolloutRequest

MAX_EXTRA_ROLLOUTS = 2
"""Maximum difference between the rollouts in flight on a group's engine and on the least loaded engine.

If the difference is larger, a new rollout of the group is assigned to the least loaded engine."""

GroupKey = tuple[int, str]
"""Epoch and row id of a group. Retries and a second sampling of the group have the same key."""


def group_key(request: RolloutRequest) -> GroupKey:
    """Return the key of the group that a rollout belongs to."""
    return request.epoch, request.task.row_id


class EngineLoad:
    """Number of rollouts in flight on one engine, in total and by group."""

    def __init__(self) -> None:
        self._by_group: Counter[GroupKey] = Counter()

    @property
    def total(self) -> int:
        return self._by_group.total()

    def has_group(self, group: GroupKey) -> bool:
        """Return whether a rollout of this group is in flight on the engine."""
        return group in self._by_group

    def add(self, group: GroupKey) -> None:
        self._by_group[group] += 1

    def remove(self, group: GroupKey) -> None:
        """Remove one rollout of `group`, which was added with `add`."""
        self._by_group[group] -= 1
        if not self._by_group[group]:
            del self._by_group[group]


AssignEngine = Callable[[Sequence[EngineLoad], GroupKey], int]
"""Function that takes the loads of all engines and a rollout's group, and returns the index of an engine."""


def find_idlest(loads: Sequence[EngineLoad], group: GroupKey) -> int:
    """Return the index of the engine with the fewest rollouts in flight. `group` is ignored."""
    return min(range(len(loads)), key=lambda index: loads[index].total)


class GroupAffinity:
    """Assigns a rollout to an engine that already runs rollouts of the same group, if the engine's load allows it.

    That engine must have a free slot, and at most MAX_EXTRA_ROLLOUTS more rollouts in flight than the least loaded
    engine. Otherwise the least loaded engine is chosen. Each engine has `max_num_seqs` slots.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs

    def __call__(self, loads: Sequence[EngineLoad], group: GroupKey) -> int:
        fallback = find_idlest(loads, group)
        bound = min(self._max_num_seqs - 1, loads[fallback].total + MAX_EXTRA_ROLLOUTS)
        preferred = [index for index, load in enumerate(loads) if load.has_group(group) and load.total <= bound]
        return min(preferred, key=lambda index: loads[index].total, default=fallback)
