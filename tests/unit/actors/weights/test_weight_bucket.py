"""The checksum of a bucket."""

from __future__ import annotations

import pytest
import torch

from agent_rft.actors.weights.weight_bucket import compute_checksum

BYTES = torch.randint(0, 256, (300_001,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [0, 1, 7, 131_071, 131_072, 300_001])
def test_equal_bytes_have_equal_checksums_wherever_they_lie(size: int) -> None:
    assert compute_checksum(BYTES[:size]) == compute_checksum(torch.cat([BYTES[:3], BYTES[:size]])[3:].clone())


@pytest.mark.parametrize("at", [0, 1, 131_071, 131_072, 262_144, 300_000])
def test_one_bit_changes_it(at: int) -> None:
    for bit in range(8):
        changed = BYTES.clone()
        changed[at] ^= 1 << bit
        assert compute_checksum(changed) != compute_checksum(BYTES)


def test_small_changes_that_cancel_in_a_sum_change_it() -> None:
    """Updates in bfloat16 move most weights by one in the last place, up or down."""
    words = BYTES[:262_144].view(torch.int16)
    generator = torch.Generator().manual_seed(1)
    seen = {compute_checksum(BYTES[:262_144])}
    for _ in range(200):
        first, second = torch.randperm(len(words), generator=generator)[:2].tolist()
        changed = words.clone()
        changed[first] += 1
        changed[second] -= 1
        seen.add(compute_checksum(changed.view(torch.uint8)))
    assert len(seen) == 201


def test_swapped_parts_change_it() -> None:
    first, second = BYTES[:131_072], BYTES[131_072:262_144]
    assert compute_checksum(torch.cat([first, second])) != compute_checksum(torch.cat([second, first]))
