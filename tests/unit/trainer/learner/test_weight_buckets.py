"""The size of a bucket is known without torch, and is torch's."""

from __future__ import annotations

import torch

from agent_rft.trainer.learner.weight_buckets import ITEMSIZES, num_bytes


def test_sizes_of_elements_are_torchs() -> None:
    assert {name: getattr(torch, name).itemsize for name in ITEMSIZES} == ITEMSIZES


def test_the_size_of_a_bucket_is_the_sum_of_its_tensors() -> None:
    assert num_bytes([]) == 0
    assert num_bytes([("weight", "bfloat16", (3, 5)), ("scale", "float32", ())]) == 3 * 5 * 2 + 4
