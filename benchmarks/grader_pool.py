"""Grades per second through the grader pool, against the grader without the pool.

For string_check and multi (two of them and an expression), the baseline is the same grader called directly. For
endpoint, it is the same requests from a plain aiohttp session, `--at-once` at a time. The server is a separate process.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
from aiohttp import web
from pydantic import TypeAdapter

from agent_rft.actors.graders.grader_protocol import Grader
from agent_rft.actors.graders.grader_sample import make_sample
from agent_rft.actors.grading.grader_factory import make_grader
from agent_rft.actors.grading.grader_pool import GraderPool
from agent_rft.spec.graders import GraderSpec
from benchmarks.common import Figure, in_turn, report
from benchmarks.local import LOCAL

ITEM = {"reference": "Paris"}
SAMPLE = make_sample("It is Paris", (), "answer", wants_json=False)
CHECK = {
    "type": "string_check",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.reference }}",
    "operation": "like",
}
MULTI = {"type": "multi", "graders": {"a": CHECK, "b": CHECK}, "calculate_output": "0.5 * a + 0.5 * b"}


async def per_second(grade: Callable[[int], Awaitable[object]], count: int, at_once: int) -> float:
    """Grades per second for `count` grades, `at_once` at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await grade(number)

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return count / (time.perf_counter() - started)


def graded(make: Callable[[GraderSpec], Grader], values: dict[str, Any], count: int, at_once: int) -> float:
    """Grades per second of the grader or pool that `make` creates."""
    spec: GraderSpec = TypeAdapter(GraderSpec).validate_python(values)

    async def measured() -> float:
        grader = make(spec)

        async def grade(number: int) -> object:
            return await grader.grade(SAMPLE, ITEM, f"trace_{number}")

        try:
            await grade(-1)  # warm-up: connections and imports are not counted
            return await per_second(grade, count, at_once)
        finally:
            await grader.close()

    return asyncio.run(measured())


def bare_posts(url: str, count: int, at_once: int) -> float:
    async def measured() -> float:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def grade(number: int) -> object:
                body = {"sample": SAMPLE, "item": ITEM, "trace_id": f"trace_{number}"}
                async with session.post(url, json=body) as response:
                    return float((await response.json())["score"])

            await grade(-1)
            return await per_second(grade, count, at_once)

    return asyncio.run(measured())


def serve(port: Connection) -> None:
    """Serve a grader that always returns 0.5, and send its port."""

    async def grade(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response({"score": 0.5})

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/grade", grade)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="grades per run; a tenth of that over HTTP")
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    count, posts, at_once = given.count, given.count // 10, given.at_once

    receiving, sending = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(sending,), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{receiving.recv()}/grade"
        endpoint = {"type": "endpoint", "url": url, "max_concurrency": at_once}
        pooled, alone = (
            partial(graded, partial(GraderPool, operator=LOCAL)),
            partial(graded, partial(make_grader, operator=LOCAL)),
        )
        pairs = {
            "string_check": (partial(pooled, CHECK, count, at_once), partial(alone, CHECK, count, at_once)),
            "multi": (partial(pooled, MULTI, count, at_once), partial(alone, MULTI, count, at_once)),
            "endpoint": (partial(pooled, endpoint, posts, at_once), partial(bare_posts, url, posts, at_once)),
        }
        figures = [
            Figure(f"grader_pool/{name}", "grades/s", in_turn(ours, baseline, given.runs))
            for name, (ours, baseline) in pairs.items()
        ]
    finally:
        server.terminate()
        server.join()
    report(figures)


if __name__ == "__main__":
    main()
