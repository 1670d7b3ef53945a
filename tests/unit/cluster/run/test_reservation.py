"""The reservation of GPUs: a job whose GPUs are gone is laid out again on those that are free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from agent_rft.cluster.checks.check_job import CheckedJob
from agent_rft.cluster.planning.cluster_plan import plan_cluster
from agent_rft.cluster.planning.placement import Placement, PlanRequest, total_resources
from agent_rft.cluster.planning.plan_nodes import Node
from agent_rft.cluster.ray_cluster.reservation_lock import reservation_lock
from agent_rft.cluster.run.reservation import reserve
from agent_rft.errors import InvalidJob
from agent_rft.spec.node_groups import NodeGroup
from agent_rft.spec.operator.operator_config import DEFAULT_CONFIG, JobLimits, OperatorConfig
from tests.support.builders import job, plan


@dataclass
class FakeGpus:
    """A node of eight GPUs, which grants reservations in the order of their requests."""

    held: float = 0.0
    capacity: float = 8.0
    reads: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    on_read: Callable[[int], None] = lambda reads: None
    lost: int = 0
    """The first reservations, which are never granted: somebody else was faster."""

    def nodes(self) -> list[Node]:
        self.reads += 1
        self.on_read(self.reads)
        return [Node("n", cores=128, gpus=8, held_gpus=self.held)]


class FakeSeats:
    """A reservation that is granted when its GPUs are free."""

    def __init__(self, gpus: FakeGpus, placement: Placement) -> None:
        self.placement = placement
        self.is_reserved = self.is_released = False
        self._gpus = gpus
        self._is_lost = gpus.lost > 0
        gpus.lost -= 1

    async def wait(self, on_missing: Callable[[str], None], *, wait_for_nodes_s: float) -> list[int]:
        needed, _ = total_resources(self.placement)
        while not self.is_reserved and (self._is_lost or self._gpus.held + needed > self._gpus.capacity):
            on_missing(f"{needed:g} GPUs")
            await asyncio.sleep(0)
        self._gpus.held += needed
        self.is_reserved = True
        return list(range(self.placement.engines))

    def release(self) -> None:
        self.is_released = True
        if self.is_reserved:
            self._gpus.held -= total_resources(self.placement)[0]
            self.is_reserved = False


def prepared(max_gpus: int | None = None, held: float = 0.0, **given: Any) -> CheckedJob:
    """A job that was laid out on the node while others held some GPUs."""
    request = PlanRequest(job(cluster=given), (Node("n", 128, 8, held_gpus=held),), None, 1024, max_gpus=max_gpus)
    return CheckedJob(request.job, plan(), plan_cluster(request), 1024, cast(Any, None), [], request=request)


class Attempt:
    """One job's reservation, with all that it requested and the layouts that it got instead."""

    def __init__(
        self, gpus: FakeGpus, made: CheckedJob, operator: OperatorConfig = DEFAULT_CONFIG, **options: Any
    ) -> None:
        self.layouts = [made.placement]
        self.requested = list[FakeSeats]()
        self._gpus = gpus
        self._made = made
        self._operator = operator
        self._options = {"poll_s": 0.0, "grant_s": 0.0} | options

    async def reserve(self) -> FakeSeats:
        def request(placement: Placement) -> FakeSeats:
            self.requested.append(FakeSeats(self._gpus, placement))
            return self.requested[-1]

        seats, placed = await reserve(
            self._made,
            request,
            self._gpus.nodes,
            self._operator,
            lambda missing: None,
            lambda changed: self.layouts.append(changed.placement),
            lambda: self._gpus.turn,
            **self._options,
        )
        assert placed == list(range(seats.placement.engines))
        return seats

    @property
    def sizes(self) -> list[float]:
        """GPUs of its layouts, the one of the check first."""
        return [total_resources(placement)[0] for placement in self.layouts]


async def test_two_jobs_that_were_laid_out_for_the_same_gpus_get_different_ones() -> None:
    gpus = FakeGpus()
    first, second = Attempt(gpus, prepared(max_gpus=6)), Attempt(gpus, prepared(max_gpus=6))
    await asyncio.gather(first.reserve(), second.reserve())
    assert sorted([first.sizes, second.sizes]) == [[6.0], [6.0, 2.0]]
    assert gpus.held == 8
    assert [seats.placement for seats in second.requested] == second.layouts[1:]  # it was laid out before its request


async def test_a_job_that_waits_is_laid_out_again_when_gpus_become_free() -> None:
    gpus = FakeGpus(held=8)
    gpus.on_read = lambda reads: setattr(gpus, "held", 4.0 if reads >= 5 else 8.0)
    waits = Attempt(gpus, prepared(held=8))
    seats = await waits.reserve()
    assert waits.sizes == [8.0, 4.0]
    assert waits.requested[0].is_released
    assert not seats.is_released


async def test_gpus_that_become_free_before_the_reservation_are_used() -> None:
    job = Attempt(FakeGpus(), prepared(held=6))
    await job.reserve()
    assert job.sizes == [2.0, 8.0]


async def test_a_job_keeps_a_reservation_that_was_granted_while_the_nodes_were_read() -> None:
    """Those GPUs look as if others held them."""
    gpus = FakeGpus(held=8)
    job = Attempt(gpus, prepared(held=8))

    def granted(reads: int) -> None:
        if reads == 4:  # the others have ended; the first engine and the ranks are placed
            job.requested[0].is_reserved, gpus.held = True, 5.0
        elif reads == 3:
            gpus.held = 4.0

    gpus.on_read = granted
    await job.reserve()
    assert job.sizes == [8.0]
    assert not job.requested[0].is_released


async def test_a_layout_that_the_job_gives_is_kept() -> None:
    gpus = FakeGpus(held=4)
    gpus.on_read = lambda reads: setattr(gpus, "held", 0.0 if reads >= 5 else 4.0)
    given = {"engines": 3, "engine_gpus": 1, "learner_ranks": 3}
    job = Attempt(gpus, prepared(**given))
    await job.reserve()
    assert job.sizes == [6.0]


async def test_a_job_that_never_gets_its_gpus_waits_for_the_last_of_some_layouts() -> None:
    gpus = FakeGpus()
    job = Attempt(gpus, prepared(), max_layouts=3)

    def is_taken_again(reads: int) -> None:
        assert len(job.requested) < 3
        gpus.held = 1.0 + reads % 5

    gpus.on_read, gpus.lost = is_taken_again, 2
    await job.reserve()
    assert len(set(job.sizes[1:])) == len(job.requested) == 3
    assert [seats.is_released for seats in job.requested] == [True, True, False]


async def test_limits_of_the_operator_hold_for_the_new_layout_too() -> None:
    job = Attempt(FakeGpus(), prepared(held=6), OperatorConfig(jobs=JobLimits(max_cores=60)))
    await job.reserve()
    assert job.sizes == [2.0]


async def test_nodes_that_may_still_join_are_planned_for() -> None:
    gpus = FakeGpus(held=6)
    listed = NodeGroup(name="gpu", count=2, cores=128, gpus=8)
    waits = Attempt(gpus, prepared(held=6), OperatorConfig(nodes=(listed,), wait_for_nodes_s=60.0))
    gpus.capacity = 16
    await waits.reserve()
    assert waits.sizes == [2.0, 10.0]


async def test_a_failed_wait_releases_the_reservation() -> None:
    class Refused(FakeSeats):
        async def wait(self, on_missing: Callable[[str], None], *, wait_for_nodes_s: float) -> list[int]:
            raise InvalidJob("too few")

    refused = list[FakeSeats]()

    def request(placement: Placement) -> FakeSeats:
        refused.append(Refused(FakeGpus(), placement))
        return refused[-1]

    gpus, nothing = FakeGpus(), cast(Any, lambda _: None)
    with pytest.raises(InvalidJob):
        await reserve(prepared(), request, gpus.nodes, DEFAULT_CONFIG, nothing, nothing, lambda: gpus.turn)
    assert refused[0].is_released


async def test_on_cpus_nothing_is_chosen_again() -> None:
    gpus = FakeGpus()
    request = PlanRequest(job(), (Node("n", 2),), None, 1024)
    on_cpus = replace(prepared(), cluster=plan_cluster(request), request=request)
    await Attempt(gpus, on_cpus).reserve()
    assert gpus.reads == 0


# -- turns -------------------------------------------------------------------------------------------------------------


async def test_a_turn_is_waited_for_and_given_back() -> None:
    answers, returned = [None, None, "holder"], list[str]()
    async with reservation_lock(lambda: answers.pop(0), returned.append, poll_s=0.0):
        assert answers == [] and returned == []
    assert returned == ["holder"]


async def test_a_job_goes_on_without_a_turn_that_never_comes() -> None:
    returned = list[str]()
    async with reservation_lock(lambda: None, returned.append, max_wait_s=0.01, poll_s=0.0):
        pass
    assert returned == []
