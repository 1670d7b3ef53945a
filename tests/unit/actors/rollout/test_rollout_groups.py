"""Groups over a fake fleet: retries, stragglers, holding back rollouts, and the account of attempts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from agent_rft.actors.rollout.episode import RolloutRequest
from agent_rft.actors.rollout.rollout_groups import AttemptCounts, GroupRunner
from agent_rft.actors.rollout.rollout_throttle import MIN_OUTCOMES, RolloutThrottle
from agent_rft.actors.runtime.timing import Timing
from agent_rft.errors import EndpointRefused
from agent_rft.events import Event, RolloutsResumed, RolloutsThrottled
from agent_rft.spec.job import RolloutLimits
from agent_rft.trainer.algorithm.advantage import compute_advantages
from agent_rft.trainer.loop.evaluation import evaluate
from agent_rft.trainer.loop.rl_metrics import slow_rows_graded_ratio
from agent_rft.types import DiscardedRollout, Group, GroupRequest, Rollout
from tests.support.builders import group, group_request, rollout, task, untrained
from tests.support.fakes import FakeRollouts
from tests.support.fakes_http import until

Run = Callable[[RolloutRequest], Awaitable[Rollout | DiscardedRollout]]


def graded(asked: RolloutRequest, grade: float = 1.0) -> Rollout:
    return rollout(group_request(), asked.sample, grade)


def failed(asked: RolloutRequest, reason: str = "tool_failed") -> DiscardedRollout:
    return DiscardedRollout("t", asked.task.row_id, asked.sample, reason, "tool 'a' failed: HTTP 500", "http://a")


class SharedTime:
    """A fake clock for concurrent sleepers: it jumps to the earliest wake-up."""

    def __init__(self) -> None:
        self.now = 0.0
        self._wakes: list[float] = []

    async def sleep(self, seconds: float) -> None:
        wake = self.now + seconds
        self._wakes.append(wake)
        try:
            while self.now < wake:
                for _ in range(5):  # let all other tasks run at this time
                    await asyncio.sleep(0)
                self.now = max(self.now, min(self._wakes))
        finally:
            self._wakes.remove(wake)


class Made:
    """Groups over `run`, and the events that they reported."""

    def __init__(self, run: Run, **limits: float) -> None:
        self.time = SharedTime()
        self.events: list[Event] = []
        self.discards: list[Event] = []
        self.holdback = RolloutThrottle(
            RolloutLimits(**limits).max_failure_rate,
            self.events.append,
            Timing(clock=lambda: self.time.now, sleep=self.time.sleep),
        )
        self.asked: list[RolloutRequest] = []
        self.groups = GroupRunner(self._counted(run), RolloutLimits(**limits), self.holdback, self.discards.append)

    def _counted(self, run: Run) -> Run:
        async def counted(asked: RolloutRequest) -> Rollout | DiscardedRollout:
            self.asked.append(asked)
            assert self.account.is_balanced
            return await run(asked)

        return counted

    @property
    def account(self) -> AttemptCounts:
        return self.groups.attempt_counts


async def test_a_discarded_rollout_is_retried_with_another_attempt_and_then_given_up() -> None:
    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        return failed(asked) if asked.sample < 2 and (asked.sample == 0 or asked.attempt == 0) else graded(asked)

    made = Made(run, max_rollout_retries=2)
    group = await made.groups.sample(group_request())
    assert [r.sample for r in group.rollouts] == [1, 2, 3, 4, 5, 6, 7]
    assert [a.attempt for a in made.asked if a.sample == 0] == [0, 1, 2]
    assert [a.attempt for a in made.asked if a.sample == 1] == [0, 1]
    assert Counter(d.sample for d in group.discarded) == {0: 3, 1: 1}
    assert (made.account.started, made.account.graded, made.account.discarded) == (11, 7, {"tool_failed": 4})


async def test_advantages_are_computed_over_the_graded_rollouts_of_a_group_only() -> None:
    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        return failed(asked) if asked.sample % 2 else graded(asked, grade=asked.sample / 8)

    group = await Made(run, max_rollout_retries=0, max_failure_rate=1).groups.sample(group_request())
    survivors = np.array([0, 2, 4, 6]) / 8
    assert compute_advantages("grpo", group.rewards) == pytest.approx(compute_advantages("grpo", survivors))
    assert len(group.discarded) == 4


async def test_a_group_with_too_few_graded_rollouts_is_sampled_again_once() -> None:
    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        return graded(asked) if asked.sample < 3 or asked.attempt >= 2 else failed(asked)

    made = Made(run, max_rollout_retries=1, max_failure_rate=1)
    group = await made.groups.sample(group_request())
    assert len(group.rollouts) == 8
    assert Counter(d.reason for d in group.discarded) == {"tool_failed": 10}
    assert {a.attempt for a in made.asked} == {0, 1, 2}


@pytest.mark.parametrize(("num_trainable", "num_attempts"), [(3, 16), (4, 8)])
async def test_a_rollout_that_is_not_trained_on_counts_as_discarded_for_the_quorum(
    num_trainable: int, num_attempts: int
) -> None:
    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        return graded(asked) if asked.sample < num_trainable else untrained(graded(asked))

    made = Made(run)
    group = await made.groups.sample(group_request())
    assert (len(group.rollouts), len(group.trainable), group.discarded) == (8, num_trainable, ())
    assert made.account.started == made.account.graded == num_attempts  # the rollout itself is not retried


async def test_groups_that_start_together_start_their_rollouts_in_turns() -> None:
    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        return graded(asked)

    made = Made(run)
    await asyncio.gather(*(made.groups.sample(group_request(index, size=3)) for index in range(2)))
    assert [(asked.sample, asked.task.row_id) for asked in made.asked] == [
        (sample, row) for sample in range(3) for row in ("0", "1")
    ]


async def test_a_lost_engine_does_not_use_up_a_retry() -> None:
    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        first = sum(a.sample == asked.sample for a in made.asked) == 1
        return failed(asked, "engine_failed") if first else graded(asked)

    made = Made(run, max_rollout_retries=0)
    group = await made.groups.sample(group_request())
    assert len(group.rollouts) == 8
    assert {a.attempt for a in made.asked} == {0}


async def test_a_training_group_leaves_out_stragglers_and_a_validation_group_waits() -> None:
    ended = asyncio.Event()

    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        if asked.sample >= 6:
            await ended.wait()
        return graded(asked)

    made = Made(run, straggler_wait_s=0.05)
    group = await made.groups.sample(group_request())
    assert len(group.rollouts) == 6
    assert [(d.sample, d.reason) for d in group.discarded] == [(6, "straggler"), (7, "straggler")]
    assert made.account.discarded == {"straggler": 2}
    assert made.account.in_flight == 0

    validating = asyncio.create_task(made.groups.sample(group_request(purpose="validation")))
    await until(lambda: made.account.in_flight == 2)
    await asyncio.sleep(0.1)  # twice the straggler's time
    assert not validating.done()
    ended.set()
    assert len((await validating).rollouts) == 8


async def test_without_straggler_wait_s_a_group_waits_for_all() -> None:
    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        await asyncio.sleep(0.1 if asked.sample == 7 else 0)
        return graded(asked)

    assert len((await Made(run).groups.sample(group_request())).rollouts) == 8


async def test_an_error_that_ends_the_job_is_raised_at_once_and_cancels_the_others() -> None:
    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        if asked.sample == 3:
            raise EndpointRefused("tool 'a' rejected the request")
        await asyncio.Event().wait()
        raise AssertionError

    made = Made(run)
    with pytest.raises(EndpointRefused):
        await made.groups.sample(group_request())
    assert made.account.cancelled == 8
    assert made.account.is_balanced


async def test_the_account_balances_at_every_moment_whatever_is_cancelled() -> None:
    chance = random.Random(3)

    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        for _ in range(chance.randrange(5)):
            await asyncio.sleep(0)
        return failed(asked) if chance.random() < 0.4 else graded(asked)

    made = Made(run, max_rollout_retries=2, max_failure_rate=1)
    running = [asyncio.create_task(made.groups.sample(group_request(index=i))) for i in range(60)]
    for sampling in running:
        if chance.random() < 0.3:
            await asyncio.sleep(0)
            sampling.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    account = made.account
    assert account.is_balanced
    assert account.in_flight == 0
    assert min(account.graded, account.discarded["tool_failed"], account.cancelled) > 20
    assert account.started == len(made.asked)


async def test_while_most_rollouts_fail_only_probes_start_and_the_event_names_the_endpoint() -> None:
    down = True
    starts: list[float] = []

    def probes() -> list[float]:
        return [start for start in starts if start > 0]

    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        starts.append(made.time.now)
        await asyncio.sleep(0)
        return failed(asked) if down else graded(asked)

    made = Made(run, max_rollout_retries=10, max_failure_rate=0.5)
    groups = [asyncio.create_task(made.groups.sample(group_request(index=i))) for i in range(4)]
    await until(lambda: len(probes()) > 8)
    assert probes()[:8] == [2, 6, 14, 30, 62, 122, 182, 242]
    assert made.holdback.is_throttled
    (down_event,) = made.events
    assert isinstance(down_event, RolloutsThrottled)
    assert (down_event.num_failed, down_event.num_rollouts) == (MIN_OUTCOMES, MIN_OUTCOMES)
    assert down_event.endpoint == "http://a"
    down = False
    assert all(len(group.rollouts) == 8 for group in await asyncio.gather(*groups))
    assert made.events == [down_event, RolloutsResumed(endpoint="http://a")]
    assert len(made.discards) == made.groups.attempt_counts.discarded.total()
    assert {(one.kind, one.is_quiet) for one in made.discards} == {("rollout_discarded", True)}


async def test_a_failure_rate_below_the_limit_holds_no_rollouts_back() -> None:
    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        return failed(asked) if asked.sample % 3 == 0 else graded(asked)

    made = Made(run, max_failure_rate=0.5, max_rollout_retries=0)
    for index in range(20):
        await made.groups.sample(group_request(index=index))
    assert not made.events


def test_slow_rows_graded_ratio_is_one_only_where_slow_rows_are_graded_as_often() -> None:
    even = [group(group_request(i), [1.0] * 6, wall_s=i) for i in range(8)]
    assert slow_rows_graded_ratio(even) == pytest.approx(1.0)
    cut = [group(group_request(i), [1.0] * (8 if i < 6 else 4), wall_s=i) for i in range(8)]
    assert slow_rows_graded_ratio(cut) == pytest.approx(0.5 / (56 / 64))
    assert np.isnan(slow_rows_graded_ratio(cut[:3]))


async def test_only_the_requested_samples_run_under_new_attempts() -> None:
    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        return failed(asked) if asked.sample == 5 else graded(asked)

    made = Made(run, max_rollout_retries=1)
    group = await made.groups.sample(group_request(0, 2, "validation", samples=(2, 5), attempt=1))
    assert [(a.sample, a.attempt) for a in made.asked if a.sample == 2] == [(2, 4)]
    assert [a.attempt for a in made.asked if a.sample == 5] == [4, 5], "0 to 3 belong to the first request"
    assert [r.sample for r in group.rollouts] == [2] and group.missing_samples == (5,)
    assert not made.groups.rollout_progress.num_ended_by_purpose["validation"], "they were counted before"


async def test_groups_are_throttled_while_only_probes_start() -> None:
    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        return graded(asked) if made.time.now else failed(asked)

    made = Made(run, max_rollout_retries=0)
    assert not made.groups.is_throttled
    await made.groups.sample(group_request(0, MIN_OUTCOMES, "validation"))
    assert made.groups.is_throttled
    assert len((await made.groups.sample(group_request(1, 2, "validation"))).rollouts) == 2
    assert not made.groups.is_throttled


@pytest.mark.parametrize("down_s", [1.0, 100.0])
async def test_an_outage_during_an_evaluation_costs_no_rollout(down_s: float) -> None:
    """The throttle waits for a probe. The rollouts that were discarded before are then repeated."""

    class Service(FakeRollouts):
        async def sample(self, request: GroupRequest) -> Group:
            return await made.groups.sample(request)

        async def has_outage(self) -> bool:
            return made.groups.is_throttled

    async def run(asked: RolloutRequest) -> Rollout | DiscardedRollout:
        return graded(asked) if made.time.now > down_s else failed(asked)

    made = Made(run, max_rollout_retries=0)
    tasks = [task(str(i)) for i in range(2 * MIN_OUTCOMES)]
    found, _ = await evaluate(Service(), tasks, "validation", 1, 1.0, 1.0)
    assert (found.num_missing, found.grade) == (0, 1.0)
    assert found.discarded >= MIN_OUTCOMES and made.account.is_balanced
