"""Who uses a shared engine, and when it ends."""

from __future__ import annotations

from agent_rft.actors.engine.shared.shared_engine import IDLE_TICKS, LEASE_TICKS, START_TICKS, Leases


def ticks(leases: Leases, count: int) -> list[str]:
    return [job for _ in range(count) for job in leases.tick()]


def test_a_lease_runs_out_unless_it_is_renewed() -> None:
    leases = Leases(2)
    assert leases.acquire("a") and leases.acquire("b")
    assert ticks(leases, LEASE_TICKS - 1) == []
    leases.renew("a")
    assert leases.tick() == ["b"]
    assert not leases.should_end
    leases.renew("b")
    assert ticks(leases, LEASE_TICKS) == ["a"]


def test_a_further_job_gets_a_lease_when_another_ends() -> None:
    leases = Leases(2)
    assert leases.acquire("a") and leases.acquire("b") and not leases.acquire("c")
    assert leases.release("a") and not leases.release("a")
    assert leases.acquire("c")


def test_an_engine_ends_a_while_after_its_last_lease() -> None:
    leases = Leases(2)
    leases.acquire("a")
    ticks(leases, LEASE_TICKS - 1)
    leases.release("a")
    ticks(leases, IDLE_TICKS - 1)
    assert not leases.should_end
    leases.tick()
    assert leases.should_end


def test_an_engine_stays_for_a_job_that_waits_for_its_ranks() -> None:
    leases = Leases(2)
    leases.keep_engine_for(START_TICKS)
    ticks(leases, START_TICKS - 1)
    assert not leases.should_end
    leases.keep_engine_for(START_TICKS)
    assert leases.acquire("a")
    leases.release("a")
    ticks(leases, IDLE_TICKS)
    assert leases.should_end
