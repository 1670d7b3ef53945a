"""CPU time of a call to an actor, caller and callee together: over a Channel, against a Ray call.

    python -m benchmarks.channel [--per-s 330] [--runs 3] [--seconds 6]

Calls are as large as a turn of the ledger, arrive at a constant rate and take 0 to 0.2 s. The CPU time of the waiting
itself is subtracted from both sides.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import ray

from agent_rft.actors.runtime.channel import ChannelActor, ChannelClient
from agent_rft.errors import ToolFailed
from benchmarks.common import Figure, report
from benchmarks.dispatcher import ARGUMENTS, ITEM

CALL = ("trace_" + "a" * 32, ITEM, [["call_" + "b" * 24, "search", ARGUMENTS]])
RESULT = [["call_" + "b" * 24, "net income of vorzen in 2013: 3363", None, 0.1, 0, False]]


async def answer(*arguments: Any) -> Any:
    await asyncio.sleep(random.random() / 5)
    return RESULT


class Callee(ChannelActor):
    def __init__(self) -> None:
        self._serve_methods({"answer": answer})

    async def answer(self, *arguments: Any) -> Any:
        return await answer(*arguments)

    async def cpu_s(self) -> float:
        return time.process_time()


class Caller:
    """The calling side, also in an actor, as engines are."""

    def __init__(self, callee: Any) -> None:
        self._callee = callee
        self._channel = ChannelClient(callee, "the callee", ToolFailed)

    async def cost_ms(self, how: str, per_s: float, seconds: float) -> float:
        """Mean CPU time of a call in milliseconds, over `seconds` of calls."""
        sends: dict[str, Callable[[], Awaitable[Any]]] = {
            "ray": lambda: self._callee.answer.remote(*CALL),
            "channel": lambda: self._channel.call("answer", *CALL),
            "nothing": answer,
        }
        count = int(seconds * per_s)
        spent: float = -time.process_time() - await self._callee.cpu_s.remote()
        started, tasks = time.perf_counter(), []
        for number in range(count):
            await asyncio.sleep(max(0.0, started + number / per_s - time.perf_counter()))
            tasks.append(asyncio.ensure_future(sends[how]()))
        await asyncio.gather(*tasks)
        callee_s: float = await self._callee.cpu_s.remote()
        return (spent + time.process_time() + callee_s) / count * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--per-s",
        type=float,
        default=330,
        help="calls per second; the default is about the rate of turns of one engine",
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of each measurement")
    options = parser.parse_args()
    ray.init("local", num_cpus=2, include_dashboard=False)
    callee: Any = cast(Any, ray.remote(Callee)).options(num_cpus=0, max_concurrency=10_000).remote()
    caller: Any = cast(Any, ray.remote(Caller)).options(num_cpus=0, max_concurrency=10_000).remote(callee)
    runs = []
    for run in range(options.runs + 1):
        nothing, channel, by_ray = (
            ray.get(caller.cost_ms.remote(how, options.per_s, options.seconds)) for how in ("nothing", "channel", "ray")
        )
        if run:  # the first run is warm-up
            runs.append((channel - nothing, by_ray - nothing))
    report([Figure("call_to_an_actor", "ms", tuple(runs))])


if __name__ == "__main__":
    main()
