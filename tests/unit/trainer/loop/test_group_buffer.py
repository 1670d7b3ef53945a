"""Which groups the next batch has, and which it waits for, is known at any time."""

from __future__ import annotations

import asyncio

import numpy as np

from agent_rft.trainer.loop.group_buffer import TRAIN, GroupBuffer
from tests.support.builders import group, group_request

LEARNS, ALIKE = [0.0, 1.0], [1.0, 1.0]


async def test_the_next_batch_counts_finished_groups_and_leaves_out_those_without_signal() -> None:
    buffer = GroupBuffer(2, 1, 2, lambda group: TRAIN if np.ptp(group.rewards) else "all_right")
    assert buffer.next_batch_progress == (0, [])
    for index in range(4):
        assert await buffer.admit(lambda: 10) == index
    assert buffer.next_batch_progress == (0, [0, 1])
    await buffer.put(group(group_request(1), LEARNS))
    assert buffer.next_batch_progress == (1, [0])
    await buffer.put(group(group_request(0), ALIKE))
    assert buffer.next_batch_progress == (1, [2]), "a group without signal is replaced by the next one"
    batch = asyncio.create_task(buffer.next_batch())
    await asyncio.sleep(0)
    assert buffer.next_batch_progress == (1, [2]), "the batch has taken the first ones already"
    await buffer.put(group(group_request(2), LEARNS))
    await batch
    assert buffer.next_batch_progress == (0, [3]), "while the learner learns, the batch after it forms"
