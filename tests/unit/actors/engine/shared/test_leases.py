"""Who uses a shared engine, and when it ends."""

from __future__ import annotations

from agent_rft.actors.engine.shared.actor import IDLE_TICKS, LEASE_TICKS, START_TICKS, Leases


def ticks(leases: Leases, count: int) -> list[str]:
    return [job for _ in range(count) for job in leases.tick()]


def test_a_lease_runs_out_unless_it_is_renewed() -> None:
    leases = Leases(2)
    assert leases.take("a") and leases.take("b")
    assert ticks(leases, LEASE_TICKS - 1) == []
    leases.renew("a")
    assert leases.tick() == ["b"]
    assert not leases.are_over
    leases.renew("b")
    assert ticks(leases, LEASE_TICKS) == ["a"]


def test_a_further_job_gets_a_lease_when_another_ends() -> None:
    leases = Leases(2)
    assert leases.take("a") and leases.take("b") and not leases.take("c")
    assert leases.end("a") and not leases.end("a")
    assert leases.take("c")


def test_an_engine_ends_a_while_after_its_last_lease() -> None:
    leases = Leases(2)
    leases.take("a")
    ticks(leases, LEASE_TICKS - 1)
    leases.end("a")
    ticks(leases, IDLE_TICKS - 1)
    assert not leases.are_over
    leases.tick()
    assert leases.are_over


def test_an_engine_stays_for_a_job_that_waits_for_its_ranks() -> None:
    leases = Leases(2)
    leases.keep(START_TICKS)
    ticks(leases, START_TICKS - 1)
    assert not leases.are_over
    leases.keep(START_TICKS)
    assert leases.take("a")
    leases.end("a")
    ticks(leases, IDLE_TICKS)
    assert leases.are_over
