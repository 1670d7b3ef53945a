"""Thousands of rollouts against endpoints that fail.

The engine is a fake; episode, dispatcher, grader pool, sessions and time are real. Some tests take 3 s for 30, or 1 s
for a minute; `make nightly` runs them at full length.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import numpy as np
import pytest

from agent_rft.actors.rollout.rollout_groups import GroupRunner
from agent_rft.actors.rollout.rollout_throttle import RolloutThrottle
from agent_rft.spec.job import RolloutLimits
from agent_rft.trainer.algorithm.advantage import compute_advantages
from agent_rft.types import DiscardedRollout, Rollout
from tests.chaos.plan import Burst, Faults, Kind, Latency, Plan
from tests.chaos.run import ChaosRun, task
from tests.chaos.server import ChaosServer
from tests.support.builders import group_request
from tests.support.fakes_http import until

SEARCH, GRADE = "tool/search", "grade"


async def test_five_thousand_concurrent_rollouts_are_all_graded_and_no_call_is_made_twice() -> None:
    async with (
        ChaosServer(Plan()) as server,
        ChaosRun(server, tool={"max_concurrency": 256}, grader={"max_concurrency": 256}) as run,
    ):
        await run.rollouts([task(i) for i in range(5_000)])
    assert (run.started, run.graded, run.balances) == (5_000, 5_000, True)
    for endpoint in (SEARCH, GRADE):
        seen = server.record.of(endpoint)
        assert len(seen.attempts) == seen.attempts.total() == 5_000
        assert seen.most_in_flight <= 256


@pytest.mark.parametrize(
    ("duration_s", "as_date"), [(3.0, False), (3.0, True), pytest.param(30.0, False, marks=pytest.mark.nightly)]
)
async def test_seconds_of_429_lose_no_rollout_and_use_up_no_retry(duration_s: float, as_date: bool) -> None:
    burst = Burst("429", from_s=0, duration_s=duration_s, retry_after_s=1, as_date=as_date)
    plan = Plan(endpoints={SEARCH: Faults(bursts=(burst,)), GRADE: Faults(bursts=(burst,))})
    async with ChaosServer(plan) as server, ChaosRun(server) as run:
        outcomes = await run.rollouts([task(i) for i in range(300)])
    assert (run.graded, run.discarded) == (300, {})
    rollouts = [outcome for (outcome,) in outcomes if isinstance(outcome, Rollout)]
    assert sum(result.retries for rollout in rollouts for result in rollout.results) == 0
    seen = server.record.of(SEARCH)
    assert seen.faults["429"] > 0
    assert Counter(seen.answered.values()) == {1: 300}


async def test_a_tool_that_hangs_forever_delays_only_its_own_rollouts() -> None:
    plan = Plan(endpoints={"tool/stuck": Faults(shares={"hang": 1.0}), SEARCH: Faults(Latency(0.02, 0.2))})
    async with ChaosServer(plan) as server, ChaosRun(server, tools=("search", "stuck")) as run:
        stuck = [asyncio.create_task(run.rollout(task(i, "stuck"))) for i in range(100)]
        await until(lambda: server.record.of("tool/stuck").in_flight > 0)
        await run.rollouts([task(i) for i in range(400)])
        assert (run.graded, run.started, any(one.done() for one in stuck)) == (400, 500, False)
        for one in stuck:
            one.cancel()
        await asyncio.wait(stuck)
        assert (run.cancelled, run.balances) == (100, True)
        await until(lambda: server.record.of("tool/stuck").in_flight == 0)


async def test_with_half_of_all_tool_calls_answering_503_advantages_use_graded_rollouts_only() -> None:
    rows, size = [task(i) for i in range(40)], 8

    async def groups(faults: Faults) -> tuple[list[list[Rollout | DiscardedRollout]], ChaosRun, ChaosServer]:
        plan = Plan(seed=3, endpoints={SEARCH: faults}, key_by="content")
        async with ChaosServer(plan) as server, ChaosRun(server, tool={"timeout_s": 5.0}) as run:
            return await run.rollouts(rows, size), run, server

    quiet, _, _ = await groups(Faults())
    faulty, run, server = await groups(Faults(shares={"503": 0.5}, sticky=True))
    broken = set(server.record.of(SEARCH).attempts) - set(server.record.of(SEARCH).answered)
    assert 0.4 < len(broken) / (40 * size) < 0.6
    assert (run.started, run.balances) == (40 * size, True)
    assert run.discarded == {"tool_failed": 40 * size - run.graded}
    assert run.discarded["tool_failed"] >= len(broken)
    assert run.graded > 0.3 * 40 * size
    for of_quiet, of_faulty in zip(quiet, faulty, strict=True):
        kept = [i for i, outcome in enumerate(of_faulty) if isinstance(outcome, Rollout)]
        if len(kept) < 2:
            continue
        alone = np.array([outcome.reward for i in kept if isinstance(outcome := of_quiet[i], Rollout)])
        rewards = np.array([outcome.reward for outcome in of_faulty if isinstance(outcome, Rollout)])
        np.testing.assert_array_equal(compute_advantages("grpo", rewards), compute_advantages("grpo", alone))
        assert rewards.min() > 0  # a failure counted as a grade would be 0


async def test_a_grader_that_is_down_for_a_while_costs_no_rollout() -> None:
    plan = Plan(endpoints={GRADE: Faults(bursts=(Burst("drop", from_s=0, duration_s=1),))})
    async with ChaosServer(plan) as server, ChaosRun(server) as run:
        await run.rollouts([task(i, "") for i in range(200)])
    assert (run.graded, run.discarded) == (200, {})
    assert server.record.of(GRADE).faults["drop"] > 0


@pytest.mark.nightly
async def test_a_grader_that_is_down_for_a_minute_costs_a_few_rollouts_at_most_and_no_group_its_members() -> None:
    """Behind the breaker the others wait; the few that were on their way are tried again under a new trace id."""
    plan = Plan(endpoints={GRADE: Faults(bursts=(Burst("drop", from_s=0, duration_s=60),))})
    async with ChaosServer(plan) as server, ChaosRun(server, rollout_timeout_s=300) as run:
        limits = RolloutLimits(max_rollout_retries=1)
        holdback = RolloutThrottle(limits.max_failure_rate, print)
        groups = GroupRunner(lambda asked: run.rollout(asked.task, asked.sample), limits, holdback, print)
        requests = [group_request(i, task=task(i, "")) for i in range(25)]
        sampled = await asyncio.gather(*(groups.sample(request) for request in requests))
    assert {len(group.rollouts) for group in sampled} == {8}
    assert run.graded == 200
    assert run.discarded.total() <= 20
    assert groups.attempt_counts.is_balanced
    assert server.record.of(GRADE).attempts.total() < 600


@pytest.mark.parametrize(
    "kind", ["reset", "too_short", "too_long", "broken_json", "wrong_type", "huge", "drip", "hang", "500", "drop"]
)
async def test_no_answer_of_a_broken_grader_becomes_a_grade(kind: Kind) -> None:
    plan = Plan(endpoints={GRADE: Faults(shares={kind: 1.0})})
    async with ChaosServer(plan) as server, ChaosRun(server, grader={"timeout_s": 1.0}) as run:
        await run.rollouts([task(i, "") for i in range(10)])
        assert (run.graded, run.discarded) == (0, {"grader_failed": 10})
        await until(lambda: server.record.of(GRADE).in_flight == 0)


@pytest.mark.nightly
async def test_of_ten_thousand_sessions_all_are_closed() -> None:
    faults = Faults(shares={"500": 0.1, "503": 0.01, "drop": 0.05})
    plan = Plan(seed=5, endpoints={"session/start": faults, "session/end": faults})
    exact = {"type": "string_check", "input": "{{ sample.output_text }}", "reference": "answer", "operation": "ilike"}
    chance = random.Random(5)
    async with ChaosServer(plan) as server:
        session = {"max_open": 1_000, "max_concurrency": 256}
        async with ChaosRun(server, grader=exact, session=session) as run:
            rollouts = [asyncio.create_task(run.rollout(task(i, ""))) for i in range(10_000)]
            for one in rollouts:
                if chance.random() < 0.1:
                    asyncio.get_running_loop().call_later(chance.random() * 10, one.cancel)
            await asyncio.wait(rollouts)
        assert run.book is not None
        stats = run.book.stats()
    record = server.record
    assert run.started == 10_000 and run.balances
    assert set(record.started) == set(record.ended) and not record.open
    assert set(record.ended.values()) == {1}
    assert (stats["open"], stats["waiting"]) == (0, 0)
    assert Counter(record.reasons.values())["graded"] == run.graded
    assert record.most_open <= 1_000


async def test_the_account_balances_whatever_fails() -> None:
    shares: dict[Kind, float] = {
        "429": 0.05, "500": 0.1, "503": 0.05, "404": 0.05, "drop": 0.03, "reset": 0.03, "hang": 0.02, "drip": 0.02,
        "broken_json": 0.02, "wrong_type": 0.02, "too_short": 0.02, "too_long": 0.02,
    }  # fmt: skip
    faults = Faults(Latency(0.005, 0.1), shares)
    lost_ends = Faults(faults.latency, {kind: share for kind, share in shares.items() if kind != "404"})
    endpoints = {SEARCH: faults, GRADE: faults, "session/start": faults, "session/end": lost_ends}
    chance = random.Random(11)
    timeout = {"timeout_s": 5.0}  # enough next to other work on the machine
    async with ChaosServer(Plan(11, endpoints)) as server:
        async with ChaosRun(server, tool=timeout, grader=timeout, session=timeout, rollout_timeout_s=30.0) as run:
            rollouts = [asyncio.create_task(run.rollout(task(i))) for i in range(1_000)]
            for one in rollouts:
                if chance.random() < 0.2:
                    asyncio.get_running_loop().call_later(chance.random() * 4, one.cancel)
            await asyncio.wait(rollouts)
        record = server.record
    assert (run.started, run.balances) == (1_000, True)
    assert run.graded > 300
    assert min(run.discarded["tool_failed"], run.discarded["grader_failed"], run.cancelled) > 0
    assert (
        set(record.started) <= set(record.ended) and not record.open
    )  # a start that was cancelled may not have arrived
