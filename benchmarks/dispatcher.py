"""Tool calls per second through the dispatcher, and the latency that it adds, against plain aiohttp.

    python -m benchmarks.dispatcher [--runs 3] [--in-flight 500 5000] [--per-s 500] [--no-ray]

A server in a separate process responds after a fixed latency. We measure the Dispatcher in an event loop like its
actor's ("inside"), and the actor as engines call it, with one message per turn ("around_actor"). The baseline is
aiohttp's client with the same server, requests and number in flight. Throughput is measured with a server that responds
immediately, latency with calls at a constant rate: `--per-s`, or half of the slower side's throughput, so that it shows
the cost of a call and not a queue.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import ray
import uvloop

from agent_rft.actors.tools.dispatcher import Dispatcher
from agent_rft.actors.tools.dispatcher_actor import DispatcherClient, start_dispatchers
from agent_rft.spec.endpoints import ToolSpec
from agent_rft.types import ToolCall
from benchmarks.common import Figure, report
from benchmarks.local import LOCAL

ITEM = {"messages": [{"role": "user", "content": "what was net income of vorzen in 2013?"}], "reference_answer": "3363"}
ARGUMENTS = json.dumps({"path": "vorzen/2013/income"})
ANSWER = json.dumps({"output": "net income of vorzen in 2013: 3363"}).encode()
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER)
Send = Callable[[int], Awaitable[object]]


class Tool(asyncio.Protocol):
    """A minimal HTTP server, so that the core it runs on is not the bottleneck.

    The path of a request is the latency of its response in milliseconds.
    """

    def connection_made(self, transport: Any) -> None:
        self._transport, self._buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            at = head.lower().index(b"content-length:") + 15
            whole = end + 4 + int(head[at : (head.find(b"\r\n", at) + 1 or end + 1) - 1])
            if len(self._buffer) < whole:
                return
            self._buffer = self._buffer[whole:]
            wait_ms = int(head.split(b" ", 2)[1][1:])
            if wait_ms:
                asyncio.get_running_loop().call_later(wait_ms / 1000, self._transport.write, RESPONSE)
            else:
                self._transport.write(RESPONSE)


def serve(port: Connection) -> None:
    raise_file_limit()

    async def listen() -> None:
        server = await asyncio.get_running_loop().create_server(Tool, "127.0.0.1", 0, backlog=8192)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(listen())


@contextmanager
def tool_server() -> Iterator[str]:
    """Start a server in a separate process and yield its URL."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.terminate()
        process.join()


def raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def rate(send: Send, in_flight: int, calls: int) -> float:
    """Calls per second with `in_flight` concurrent calls."""
    numbers = iter(range(calls))

    async def lane() -> None:
        for number in numbers:
            await send(number)

    started = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(in_flight)))
    return calls / (time.perf_counter() - started)


async def p99_ms(send: Send, per_s: float, calls: int) -> float:
    """The 99th percentile of the latency of calls at a constant rate."""
    took = []

    async def one(number: int) -> None:
        started = time.perf_counter()
        await send(number)
        took.append(time.perf_counter() - started)

    started = time.perf_counter()
    tasks = []
    for number in range(calls):
        await asyncio.sleep(max(0.0, started + number / per_s - time.perf_counter()))
        tasks.append(asyncio.create_task(one(number)))
    await asyncio.gather(*tasks)
    return sorted(took)[int(0.99 * calls)] * 1000


def call_of(number: int) -> ToolCall:
    return ToolCall(f"call_{number:024x}", "search", ARGUMENTS)


def through(dispatcher: Any) -> Send:
    async def send(number: int) -> object:
        return await dispatcher.call_turn(f"trace_{number % 512:032x}", ITEM, [call_of(number)])

    return send


def bare(session: aiohttp.ClientSession, url: str) -> Send:
    async def send(number: int) -> object:
        call = call_of(number)
        body = {
            "type": "function_call",
            "id": call.call_id,
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments,
            "trace_id": f"trace_{number % 512:032x}",
            "item": ITEM,
        }
        headers = {"Idempotency-Key": call.call_id, "Content-Type": "application/json"}
        async with session.post(url, data=json.dumps(body).encode(), headers=headers) as response:
            return json.loads(await response.read())["output"]

    return send


def spec(url: str, in_flight: int) -> ToolSpec:
    return ToolSpec(name="search", server_url=url, max_concurrency=in_flight, timeout_s=600)


async def pair(
    ours: Send, theirs: Send, measure: Callable[[Send], Awaitable[float]], first: bool
) -> tuple[float, float]:
    """Measure both sides, ours first if `first`; callers alternate the order from run to run."""
    gc.collect()
    gc.freeze()  # as the actor does
    if first:
        return await measure(ours), await measure(theirs)
    baseline = await measure(theirs)
    return await measure(ours), baseline


async def measure(
    url: str, in_flight: int, runs: int, calls: int, ray_too: bool, calls_per_s: float | None
) -> list[Figure]:
    """All figures at one number of calls in flight."""
    figures: dict[tuple[str, str], list[tuple[float, float]]] = {}
    # With this latency about `in_flight` calls are in flight at the given rate.
    slow_ms = 200 if in_flight <= 500 else 2000
    # With a limit of exactly `in_flight`, every delay would cause a queue that never drains.
    specs = {ms: spec(f"{url}/{ms}", in_flight * (2 if ms else 1)) for ms in (0, slow_ms)}
    inside = {ms: Dispatcher([one], LOCAL) for ms, one in specs.items()}
    actors = {ms: start_dispatchers([one], LOCAL, 1) for ms, one in specs.items()} if ray_too else {}
    around = {ms: DispatcherClient(*started) for ms, started in actors.items()}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()) as s:
        for run in range(runs + 1):
            for side, dispatchers in (("inside", inside), ("around_actor", around)):
                if not dispatchers:
                    continue
                quick = await pair(
                    through(dispatchers[0]),
                    bare(s, f"{url}/0"),
                    lambda send: rate(send, in_flight, calls),
                    run % 2 == 0,
                )
                per_s = calls_per_s or min(in_flight / (slow_ms / 1000), min(quick) / 2)
                slow = await pair(
                    through(dispatchers[slow_ms]),
                    bare(s, f"{url}/{slow_ms}"),
                    lambda send, per_s=per_s: p99_ms(send, per_s, max(calls // 4, 2 * in_flight)),  # type: ignore[misc]
                    run % 2 == 0,
                )
                if run:  # the first run is warm-up
                    figures.setdefault((f"dispatcher_{in_flight}_{side}", "calls/s"), []).append(quick)
                    figures.setdefault((f"dispatcher_{in_flight}_{side}_p99", "ms"), []).append(slow)
                    print(
                        f"{in_flight} {side}: {quick[0]:.0f} and {quick[1]:.0f} calls/s, p99 {slow[0]:.1f} and "
                        f"{slow[1]:.1f} ms at {per_s:.0f} calls/s",
                        flush=True,
                    )
    for dispatcher in inside.values():
        await dispatcher.close()
    for started in actors.values():
        for actor in started:
            ray.kill(actor)
    return [Figure(name, unit, tuple(runs)) for (name, unit), runs in figures.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[500, 5000])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--per-s", type=float, help="calls per second while latency is measured")
    parser.add_argument("--no-ray", action="store_true")
    options = parser.parse_args()
    raise_file_limit()
    if not options.no_ray:
        ray.init("local", num_cpus=1, include_dashboard=False)
    figures = []
    with tool_server() as url:
        for in_flight in options.in_flight:
            how = (options.runs, options.calls, not options.no_ray, options.per_s)
            figures += uvloop.run(measure(url, in_flight, *how))
    report(figures)
    for figure in figures:
        if figure.unit == "ms":
            added = sorted(ours - theirs for ours, theirs in figure.runs)
            print(f"{figure.name}: added {added[len(added) // 2]:.2f} ms ({added[0]:.2f}..{added[-1]:.2f})")


if __name__ == "__main__":
    main()
