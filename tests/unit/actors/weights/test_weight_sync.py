"""Which engines have the learner's weights, by what they say that they loaded."""

from __future__ import annotations

from typing import Any

import pytest

from agent_rft.actors.weights.weight_sync import PublishedWeights, WeightSync, sync_timeout_s
from agent_rft.errors import EngineFailed
from agent_rft.trainer.learner.weight_buckets import BucketLayout, WeightLoadResult

LAYOUT: BucketLayout = [("a", "float32", (2,)), ("b", "float32", (1,))]
WHOLE = WeightLoadResult(0.5, (7, 7))


class Source:
    incarnation = 1

    async def bucket_layouts(self, max_bytes: int) -> list[BucketLayout]:
        return [LAYOUT, LAYOUT]

    async def publish_bucket(self, index: int) -> tuple[Any, int]:
        return f"bucket {index}", [(1 << 64) - 1, 8][index]


@pytest.fixture
def sync() -> WeightSync:
    return WeightSync(Source())


@pytest.fixture
async def published(sync: WeightSync) -> PublishedWeights:
    return await sync.collect(3)


async def test_the_learner_s_checksums_are_added_up(published: PublishedWeights) -> None:
    assert published.checksum == 7
    assert published.buckets == (("bucket 0", LAYOUT), ("bucket 1", LAYOUT))


async def test_an_engine_one_of_whose_processes_loaded_other_bytes_has_failed(
    sync: WeightSync, published: PublishedWeights
) -> None:
    assert sync.check_loaded_weights(published, WHOLE) == 0.5
    failed = sync.check_loaded_weights(published, WeightLoadResult(0.5, (7, 6)))
    assert isinstance(failed, EngineFailed)
    assert failed.message == "the checksum of the engine's weights differs from the learner's checksum for version 3"


async def test_an_engine_whose_parameters_missed_a_tensor_has_failed_if_another_took_it(
    sync: WeightSync, published: PublishedWeights
) -> None:
    missed = WeightLoadResult(0.5, (7,), ("b",))
    assert sync.check_loaded_weights(published, missed) == 0.5, "perhaps this model transforms it"
    assert sync.unloaded_tensors == ("b",)
    assert sync.check_loaded_weights(published, WHOLE) == 0.5
    failed = sync.check_loaded_weights(published, missed)
    assert isinstance(failed, EngineFailed) and failed.message == "the engine did not load 1 tensors of version 3: b"


@pytest.mark.parametrize(("num_bytes", "num_engines", "timeout_s"), [(1e9, 4, 600), (16e9, 1, 600), (16e9, 4, 1_280)])
def test_time_to_load_weights_follows_from_their_bytes_and_the_engines(
    num_bytes: float, num_engines: int, timeout_s: float
) -> None:
    assert sync_timeout_s(int(num_bytes), num_engines) == timeout_s
