"""The protocol of broadcasts. Learner and engines are fakes, but the broadcasts are real."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agent_rft.actors.weights.broadcast_sync import BroadcastSync
from agent_rft.actors.weights.weight_bucket import MASK, compute_checksum
from agent_rft.actors.weights.weight_sync import PublishedWeights
from agent_rft.errors import EngineFailed, RftError
from agent_rft.trainer.learner.process_group import SENDER, BroadcastGroup, find_free_port
from agent_rft.trainer.learner.weight_buckets import BucketLayout, WeightLoadResult
from tests.support.fakes_http import MovableLoop, in_movable_time, until

LAYOUTS: list[BucketLayout] = [[("a", "float32", (2, 3)), ("b", "float32", (1,))], [("c", "float32", (5,))]]
CPU = torch.device("cpu")


class Method:
    """A method of an actor, as `ask` calls it; expected errors are returned as values."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def remote(self, *arguments: Any) -> Any:
        async def outcome() -> Any:
            try:
                return await asyncio.to_thread(self._call, *arguments)
            except RftError as error:
                return error

        return asyncio.ensure_future(outcome())


class Engine:
    """A worker whose weights are bytes; `stage_bucket` and `load_staged` serve the object store's transport."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = 0
        self.weights: list[bytes] = []
        self.groups: list[dict[str, Any]] = []
        self.dies = False
        self._broadcast: BroadcastGroup | None = None
        self._staged: list[bytes] = []
        self.init_transport, self.receive_weights = Method(self._init_transport), Method(self._receive)
        self.stage_bucket, self.load_staged = Method(self._stage), Method(self._load_staged)

    def _init_transport(self, info: dict[str, Any]) -> None:
        if self.dies:
            raise EngineFailed(f"{self.name} is gone")
        self.groups.append(info)
        self._broadcast = BroadcastGroup(info["address"], info["rank"], info["size"], CPU)

    def _receive(self, version: int, layouts: Sequence[BucketLayout]) -> WeightLoadResult:
        assert self._broadcast is not None
        if self.dies:
            raise EngineFailed(f"{self.name} is gone")
        try:
            sizes = [sum(4 * int(np.prod(shape)) for _, _, shape in layout) for layout in layouts]
            self.weights = [self._broadcast.receive(size).numpy().tobytes() for size in sizes]
        except RuntimeError as error:
            raise EngineFailed(f"{self.name} could not load weights: {error}") from error
        self.version = version
        return self._loaded(0.1)

    def _stage(self, data: np.ndarray, layout: BucketLayout) -> None:
        self._staged.append(data.tobytes())

    def _loaded(self, pause_s: float) -> WeightLoadResult:
        return WeightLoadResult(pause_s, (sum(number_of(data) for data in self.weights) & MASK,))

    def _load_staged(self, version: int) -> WeightLoadResult:
        if self.dies:
            raise EngineFailed(f"{self.name} is gone")
        self.weights, self._staged, self.version = self._staged, [], version
        return self._loaded(0.2)


def number_of(data: bytes) -> int:
    return compute_checksum(torch.frombuffer(bytearray(data), dtype=torch.uint8))


class Learner:
    """The learner's rank 0."""

    incarnation = 1

    def __init__(self) -> None:
        self._broadcast: BroadcastGroup | None = None
        self.step = 0
        self.breaks_off = False
        self.keeps_back = 0

    async def bucket_layouts(self, max_bytes: int) -> list[BucketLayout]:
        return LAYOUTS

    async def publish_bucket(self, index: int) -> tuple[np.ndarray, int]:
        count = sum(int(np.prod(shape)) for _, _, shape in LAYOUTS[index])
        data = np.full(count, self.step + index, np.float32).view(np.uint8)
        return data, number_of(data.tobytes())

    async def choose_address(self) -> str:
        return f"127.0.0.1:{find_free_port()}"

    async def open_broadcast(self, address: str, size: int) -> None:
        self._broadcast = await asyncio.to_thread(BroadcastGroup, address, SENDER, size, CPU)

    async def broadcast_bucket(self, bucket: np.ndarray) -> None:
        assert self._broadcast is not None
        if self.breaks_off:
            raise EngineFailed("a connection was closed")
        bucket = bucket.copy()
        bucket[: self.keeps_back] ^= 1
        try:
            await asyncio.to_thread(self._broadcast.send, torch.tensor(bucket))
        except RuntimeError as error:
            raise EngineFailed(f"a broadcast failed: {error}") from error


class WeightTransfer:
    def __init__(self) -> None:
        self.learner = Learner()
        self.sync = BroadcastSync(self.learner, workers_per_engine=1)
        self.engines = [Engine("engine-0"), Engine("engine-1")]

    async def publish(self, version: int) -> list[float | EngineFailed]:
        self.learner.step = 10 * version
        self.published: PublishedWeights = await self.sync.collect(version)
        return await self.sync.deliver(self.published, self.engines)

    def weights(self, version: int) -> list[bytes]:
        return [np.full(count, 10 * version + i, np.float32).tobytes() for i, count in enumerate((7, 5))]


@pytest.fixture
def transfer() -> WeightTransfer:
    return WeightTransfer()


async def test_all_engines_get_each_bucket_in_order_and_keep_their_group(transfer: WeightTransfer) -> None:
    for version in (1, 2):
        assert await transfer.publish(version) == [0.1, 0.1]
        assert [engine.version for engine in transfer.engines] == [version, version]
        assert [engine.weights for engine in transfer.engines] == [transfer.weights(version)] * 2
    groups = [engine.groups for engine in transfer.engines]
    assert [[(info["rank"], info["size"]) for info in infos] for infos in groups] == [[(1, 3)], [(2, 3)]]


async def test_an_engine_that_joins_late_catches_up_and_is_in_the_next_group(transfer: WeightTransfer) -> None:
    await transfer.publish(1)
    transfer.engines[1] = Engine("engine-1")
    assert await transfer.sync.load_into(transfer.published, transfer.engines[1]) == 0.2
    assert transfer.engines[1].weights == transfer.weights(1)
    assert await transfer.publish(2) == [0.1, 0.1]
    assert [len(engine.groups) for engine in transfer.engines] == [2, 1]


async def test_after_a_failed_transfer_the_group_is_formed_again(transfer: WeightTransfer) -> None:
    await transfer.publish(1)
    transfer.learner.breaks_off = transfer.engines[0].dies = transfer.engines[1].dies = True
    assert all(isinstance(outcome, EngineFailed) for outcome in await transfer.publish(2))
    transfer.learner.breaks_off = transfer.engines[1].dies = False
    transfer.engines[0] = Engine("engine-0")
    assert await transfer.publish(3) == [0.1, 0.1]
    assert [engine.weights for engine in transfer.engines] == [transfer.weights(3)] * 2


async def test_an_engine_that_received_other_bytes_has_failed(transfer: WeightTransfer) -> None:
    await transfer.publish(1)
    transfer.learner.keeps_back = 1
    outcomes = await transfer.publish(2)
    assert [str(outcome) for outcome in outcomes] == [
        "the checksum of the engine's weights differs from the learner's checksum for version 2"
    ] * 2


async def test_if_no_group_can_be_formed_weights_go_through_the_object_store(transfer: WeightTransfer) -> None:
    class Alone(Learner):
        async def open_broadcast(self, address: str, size: int) -> None:
            raise EngineFailed("not all have come")

    transfer.sync = BroadcastSync(Alone(), workers_per_engine=1)
    for engine in transfer.engines:
        engine.init_transport = Method(lambda info: None)
    transfer.engines[0].dies = True
    outcomes = await transfer.publish(1)
    assert isinstance(outcomes[0], EngineFailed) and outcomes[1] == 0.2
    assert transfer.engines[1].version == 1


async def test_each_worker_process_of_an_engine_is_a_member(transfer: WeightTransfer) -> None:
    told: list[dict[str, Any]] = []

    class Four(Learner):
        async def open_broadcast(self, address: str, size: int) -> None:
            told.append({"address": address, "size": size})

        async def broadcast_bucket(self, bucket: np.ndarray) -> None:
            pass

    sync = BroadcastSync(Four(), workers_per_engine=4)
    for engine in transfer.engines:
        engine.init_transport = Method(told.append)
        engine.receive_weights = Method(lambda version, layouts: WeightLoadResult(0.1, ()))
    await sync.deliver(await sync.collect(1), transfer.engines)
    assert {info["size"] for info in told} == {9}
    assert sorted(info["rank"] for info in told if "rank" in info) == [1, 5]
    assert len({info["address"] for info in told}) == 1


def test_broadcast_of_a_large_model_may_take_hours_and_only_an_engine_that_hangs_is_given_up() -> None:
    """140 GB to two engines at 50 MB/s are 5,600 s."""

    class Large(Learner):
        async def bucket_layouts(self, max_bytes: int) -> list[BucketLayout]:
            return [[("a", "uint8", (140_000_000_000,))]]

        async def publish_bucket(self, index: int) -> tuple[np.ndarray, int]:
            return np.zeros(1, np.uint8), 0

        async def open_broadcast(self, address: str, size: int) -> None:
            pass

        async def broadcast_bucket(self, bucket: np.ndarray) -> None:
            pass

    async def test(loop: MovableLoop) -> None:
        sync, engines = BroadcastSync(Large(), workers_per_engine=1), [Engine("slow"), Engine("stuck")]
        receiving: list[asyncio.Future[WeightLoadResult]] = []

        def receive(version: int, layouts: Sequence[BucketLayout]) -> asyncio.Future[WeightLoadResult]:
            receiving.append(loop.create_future())
            return receiving[-1]

        for engine in engines:
            engine.init_transport = Method(lambda info: None)
            engine.receive_weights = SimpleNamespace(remote=receive)
        delivering = asyncio.create_task(sync.deliver(await sync.collect(1), engines))
        await until(lambda: len(receiving) == 2)
        for seconds in (700.0, 4_800.0):
            loop.move(seconds)
            await asyncio.sleep(0.02)
            assert not delivering.done()
        receiving[0].set_result(WeightLoadResult(0.1, (0,)))
        await asyncio.sleep(0)
        loop.move(200.0)
        slow, stuck = await delivering
        assert slow == 0.1
        assert isinstance(stuck, EngineFailed) and stuck.message == "an engine did not answer within 5600 s"

    in_movable_time(test)
