"""The faulty server itself: it fails as planned, and equally in every run."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.chaos.plan import Burst, Faults, Latency, Plan
from tests.chaos.server import HUGE_BYTES, ChaosServer
from tests.support.paths import ROOT

SEARCH = "tool/search"


async def ask(url: str, call_id: str = "call_1", timeout_s: float = 5.0, **body: Any) -> tuple[int, str]:
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(url, json={"arguments": "{}", **body}, headers={"Idempotency-Key": call_id}) as response,
    ):
        return response.status, await response.text()


def failing(kind: Any, **faults: Any) -> Plan:
    return Plan(endpoints={SEARCH: Faults(shares={kind: 1.0}, **faults)})


@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [("429", 429, "no"), ("500", 500, "no"), ("broken_json", 200, '{"output": "result of {}'), ("404", 404, "no")],
)
async def test_wrong_answers(kind: str, status: int, said: str) -> None:
    async with ChaosServer(failing(kind)) as server:
        assert await ask(f"{server.url}/{SEARCH}") == (status, said)
    assert server.record.of(SEARCH).faults == {kind: 1}


@pytest.mark.parametrize("kind", ["drop", "reset", "too_short", "too_long"])
async def test_incomplete_and_overlong_answers(kind: str) -> None:
    async with ChaosServer(failing(kind)) as server:
        with pytest.raises(aiohttp.ClientError):
            await ask(f"{server.url}/{SEARCH}")


@pytest.mark.parametrize("kind", ["hang", "drip"])
async def test_answers_that_never_end(kind: str) -> None:
    async with ChaosServer(failing(kind)) as server:
        with pytest.raises(TimeoutError):
            await ask(f"{server.url}/{SEARCH}", timeout_s=0.2)


async def test_bodies_of_the_wrong_size_and_type() -> None:
    async with ChaosServer(failing("huge")) as server:
        assert len((await ask(f"{server.url}/{SEARCH}"))[1]) > HUGE_BYTES
    async with ChaosServer(Plan(endpoints={"grade": Faults(shares={"wrong_type": 1.0})})) as server:
        scores = {(await ask(f"{server.url}/grade", f"trace_{i}"))[1] for i in range(30)}
    assert len(scores) == 5 and '{"score": NaN}' in scores


async def test_a_seed_determines_which_calls_fail() -> None:
    faults = {SEARCH: Faults(shares={"503": 0.3, "500": 0.2})}

    async def statuses(seed: int) -> list[int]:
        async with ChaosServer(Plan(seed, faults)) as server:
            calls = [ask(f"{server.url}/{SEARCH}", f"call_{i // 2}") for i in range(60)]
            return [status for status, _ in [await call for call in calls]]

    first = await statuses(1)
    assert first == await statuses(1) != await statuses(2)
    assert first[::2] != first[1::2]  # attempts at a call fail independently
    assert {200, 500, 503} == set(first)


async def test_a_burst_has_a_period_and_a_retry_after() -> None:
    now = 0.0
    burst = Burst("429", from_s=1, duration_s=30, retry_after_s=7)
    dated = Burst("503", from_s=31, duration_s=1, retry_after_s=7, as_date=True)
    plan = Plan(endpoints={SEARCH: Faults(bursts=(burst, dated))})
    async with ChaosServer(plan, clock=lambda: now) as server, aiohttp.ClientSession() as session:
        waits = []
        for second in (0.0, 1.0, 30.9, 31.0, 32.0):
            now = second
            async with session.post(
                f"{server.url}/{SEARCH}", json={"arguments": "{}"}, headers={"Idempotency-Key": "c"}
            ) as response:
                waits.append((response.status, response.headers.get("Retry-After")))
    assert waits[:3] == [(200, None), (429, "7"), (429, "7")] and waits[4] == (200, None)
    assert waits[3][0] == 503 and parsedate_to_datetime(str(waits[3][1])).tzinfo is not None


def test_latencies_have_the_configured_median_and_tail() -> None:
    latency = Latency(median_s=0.1, p99_s=2.0)
    values = [latency.at((i + 0.5) / 1000) for i in range(1000)]
    assert statistics.median(values) == pytest.approx(0.1, rel=0.01)
    assert values[989] < 2.0 < values[990]
    assert Latency(0.3).at(0.99) == 0.3


async def test_a_plan_is_read_from_a_file_and_the_record_served(tmp_path: Path) -> None:
    faults = Faults(Latency(0.001, 0.01), {"500": 0.0}, bursts=(Burst("429", 100, 1),))
    plan = Plan(seed=7, endpoints={SEARCH: faults})
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan
    command = [sys.executable, "-m", "tests.chaos.server", "--plan", str(tmp_path / "plan.json")]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        await ask(f"{url}/{SEARCH}")
        await ask(f"{url}/session/start", "trace_1/start", trace_id="trace_1")
        await ask(f"{url}/session/start", "trace_2/start", trace_id="trace_2")
        await ask(f"{url}/session/end", "trace_1/end", trace_id="trace_1", reason="graded")
        async with aiohttp.ClientSession() as session, session.get(f"{url}/stats") as response:
            record = json.loads(await response.text())
    finally:
        process.terminate()
        await process.wait()
    assert record["endpoints"][SEARCH]["attempts"] == {"call_1": 1}
    assert record["endpoints"][SEARCH]["most_in_flight"] == 1
    assert record["endpoints"][SEARCH]["bytes_in"] > 0
    assert (record["open"], record["most_open"], record["reasons"]) == (["trace_2"], 2, {"trace_1": "graded"})
