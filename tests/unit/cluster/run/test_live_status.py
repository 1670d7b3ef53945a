"""status.json: what the actors and endpoints of a run do, written every few seconds and removed at the end."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_rft.actors.endpoints.endpoint_statistics import EndpointStats, compute_quantile_s
from agent_rft.actors.rollout.fleet import EngineState
from agent_rft.actors.runtime.rollout_stages import WorkInProgress
from agent_rft.actors.runtime.watchdog import ActorSnapshot
from agent_rft.cluster.run.live_status import EndpointOutages, LiveStatusFile, describe_endpoints
from agent_rft.events import EndpointOutageEnded, EndpointOutageStarted, Event
from agent_rft.metrics.metric import SECONDS

ENGINE = EngineState("engine-0", "ready", 3)
SEEN = ActorSnapshot("engine-0", (WorkInProgress("trace_1", "tool calls", 2.5),), 0.0)


def stats(latencies_s: list[float], breaker: str = "closed", **errors: int) -> dict[str, dict[str, Any]]:
    counted = EndpointStats(calls=len(latencies_s), answered=len(latencies_s))
    for latency_s in latencies_s:
        counted.record_latency(latency_s)
    counted.errors.update(errors)
    now = {"limit": 8, "in_flight": 2, "queued": 1, "breaker": breaker, "outages": 0, "delayed": 0}
    return {"tool 'search'": {**counted.as_dict(), **now}}


class Fleet:
    def __init__(self) -> None:
        self.stats = stats([0.2])

    def engine_states(self) -> list[EngineState]:
        return [ENGINE]

    async def endpoint_stats(self) -> dict[str, dict[str, Any]]:
        return self.stats


class Dog:
    @property
    def last_answers(self) -> list[ActorSnapshot]:
        return [SEEN]


def ticks() -> tuple[asyncio.Queue[None], Callable[[float], Awaitable[None]]]:
    """A queue with a None for each sleep that begins, and the sleep, which never ends."""
    begun: asyncio.Queue[None] = asyncio.Queue()

    async def sleep(seconds: float) -> None:
        begun.put_nowait(None)
        await asyncio.Event().wait()

    return begun, sleep


async def test_the_file_has_what_all_processes_do_and_goes_with_them(tmp_path: Path) -> None:
    begun, sleep = ticks()
    now = LiveStatusFile(tmp_path, Dog(), Fleet(), print, sleep, lambda: 1_000.0)
    await begun.get()
    found = json.loads((tmp_path / "status.json").read_text())
    assert found["at"] == 1_000.0 and found["engines"] == [{"name": "engine-0", "state": "ready", "rollouts": 3}]
    [actor] = found["actors"]
    assert actor["work"] == [{"trace_id": "trace_1", "stage": "tool calls", "duration_s": 2.5}]
    assert found["endpoints"][0]["name"] == "tool 'search'"
    await now.close()
    assert os.listdir(tmp_path) == []


async def test_a_job_without_rollouts_has_its_learner_only_and_a_missing_folder_ends_nothing(tmp_path: Path) -> None:
    begun, sleep = ticks()
    now = LiveStatusFile(tmp_path / "gone", Dog(), None, print, sleep)
    await begun.get()
    await now.close()
    begun, sleep = ticks()
    now = LiveStatusFile(tmp_path, Dog(), None, print, sleep)
    await begun.get()
    found = json.loads((tmp_path / "status.json").read_text())
    assert (found["engines"], found["endpoints"], len(found["actors"])) == ([], [], 1)
    await now.close()


async def test_a_write_that_is_under_way_at_the_end_leaves_no_file(tmp_path: Path) -> None:
    for _ in range(20):
        written = asyncio.Event()

        async def at_once(seconds: float, written: asyncio.Event = written) -> None:
            written.set()

        now = LiveStatusFile(tmp_path, Dog(), Fleet(), print, at_once)
        await written.wait()
        await now.close()
    await asyncio.get_running_loop().shutdown_default_executor()  # waits for its threads
    assert os.listdir(tmp_path) == []


async def test_outage_of_an_endpoint_is_two_events_and_in_the_file_meanwhile(tmp_path: Path) -> None:
    fleet, times, events = Fleet(), iter((1_000.0, 1_003.0, 1_006.0, 1_023.0)), list[Event]()
    begun, going_on = asyncio.Queue[None](), asyncio.Queue[None]()

    async def sleep(seconds: float) -> None:
        begun.put_nowait(None)
        await going_on.get()

    async def look(breaker: str, **counts: int) -> Any:
        fleet.stats = {name: values | counts | {"breaker": breaker} for name, values in fleet.stats.items()}
        going_on.put_nowait(None)
        await begun.get()
        return json.loads((tmp_path / "status.json").read_text())["endpoints"][0]

    now = LiveStatusFile(tmp_path, Dog(), fleet, events.append, sleep, lambda: next(times))
    await begun.get()
    first = await look("open", outages=1, delayed=30)
    assert (first["down_s"], first["delayed_calls"]) == (0.0, 30)
    second = await look("half_open", delayed=64)
    assert (second["down_s"], second["delayed_calls"]) == (3.0, 64)
    last = await look("closed", failed=2)
    assert (last["down_s"], last["delayed_calls"]) == (None, 0)
    await now.close()
    search = "tool 'search'"
    ended = EndpointOutageEnded(endpoint=search, started_at=1_003.0, duration_s=20.0, delayed_calls=64, failed_calls=2)
    assert events == [EndpointOutageStarted(endpoint=search), ended]
    assert str(ended) == "tool 'search' is up again after 20 s; 64 calls were delayed, 2 failed"


def test_outage_between_two_looks_is_reported_and_a_new_process_is_not_one() -> None:
    events = list[Event]()
    outages = EndpointOutages(events.append)

    def look(now: float, outages_so_far: int, delayed: int) -> None:
        counts = {"outages": outages_so_far, "delayed": delayed}
        outages.observe(now, {name: values | counts for name, values in stats([0.2]).items()})

    look(100.0, 3, 10)
    events.clear()
    look(103.0, 4, 15)
    began, ended = events
    assert isinstance(began, EndpointOutageStarted) and isinstance(ended, EndpointOutageEnded)
    assert (ended.started_at, ended.duration_s, ended.delayed_calls) == (100.0, 3.0, 5)
    look(106.0, 0, 0)  # its dispatcher has started again
    assert len(events) == 2


def test_recent_values_are_those_of_the_time_between_the_first_and_the_last_look() -> None:
    first, last = stats([0.2] * 10, timeout=2), stats([0.2] * 10 + [2.0] * 4, "open", timeout=5)
    [found] = describe_endpoints([(100.0, first), (160.0, last)])
    assert (found["recent_s"], found["recent_calls"], found["recent_errors"]) == (60.0, 4, {"timeout": 3})
    assert (found["breaker"], found["calls"], found["errors"]) == ("open", 14, {"timeout": 5})
    assert 1.0 < found["latency_p50_s"] < found["latency_p95_s"] <= 2.5


def test_after_a_restart_of_its_process_all_of_an_endpoint_is_recent() -> None:
    [found] = describe_endpoints([(0.0, stats([0.2] * 10)), (60.0, stats([0.2] * 3))])
    assert found["recent_calls"] == 3 and found["latency_p50_s"] == pytest.approx(0.175)
    [quiet] = describe_endpoints([(0.0, stats([0.2])), (60.0, stats([0.2]))])
    assert quiet["latency_p50_s"] is None and quiet["recent_calls"] == 0


def test_a_quantile_above_all_buckets_is_the_last_bound() -> None:
    counts = [0] * len(SECONDS) + [3]
    assert compute_quantile_s(counts, 0.5) == SECONDS[-1] and compute_quantile_s([0] * len(counts), 0.5) is None
