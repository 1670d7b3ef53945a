"""The cost of metrics: rollouts per second on one engine with metrics, including vLLM's own, and without.

    python -m benchmarks.metrics [--runs 3] [--episodes 640] [--admitted 192] [--ours-alone] [--control]

There are two fleets, each with its own engine, dispatcher and grader pool. One of them exports metrics, which are
scraped every second, fifteen times as often as usual. They work in turn on the ledger's test rows, with tools that
respond immediately so that nothing hides the cost. The second figure, rollouts per second of CPU time of episodes and
engine, is more reliable if other work runs on the machine. With `--control` neither fleet has metrics, and the ratio
shows the noise.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
import urllib.request

from agent_rft.actors.runtime.telemetry.exporter import MetricsAddress
from agent_rft.types import GroupRequest
from benchmarks.common import Figure, report
from benchmarks.worker import LedgerFleet, ledger_fleets

SLOTS = 64
PORT = 9465
SCRAPE_INTERVAL_S = 1.0


async def rates(ledger: LedgerFleet, count: int, admitted: int, epoch: int) -> tuple[float, float]:
    """Rollouts per second, and per second of CPU time, for `count` rollouts with `admitted` at a time.

    The prefix cache is empty at the start.
    """
    await ledger.worker.forget.remote()
    tasks, slots = ledger.prepared.test, asyncio.Semaphore(admitted)

    async def one(index: int) -> None:
        async with slots:
            request = GroupRequest(tasks[index % len(tasks)], epoch, index, 1, "test", 1.0)
            (await ledger.fleet.sample(request)).rollouts[0]

    started, spent = time.monotonic(), await ledger.worker.processor_s.remote()
    await asyncio.gather(*(one(index) for index in range(count)))
    return count / (time.monotonic() - started), count / (await ledger.worker.processor_s.remote() - spent)


def scrape(stopped: threading.Event) -> None:
    """Scrape the metrics until `stopped`, as Prometheus does."""
    while not stopped.wait(SCRAPE_INTERVAL_S):
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=30) as answer:
            assert b"agent_rft_engine_slots" in answer.read()


async def measure(options: argparse.Namespace) -> list[Figure]:
    runs, processor, stopped = [], [], threading.Event()
    address = None if options.control else MetricsAddress("bench", "127.0.0.1", PORT)
    async with ledger_fleets(SLOTS, [address, None], vllms_own=not options.ours_alone) as (watched, plain):
        for fleet in (watched, plain):
            await rates(fleet, 2 * SLOTS, SLOTS, epoch=0)  # warm-up of connections and compiled code
        scraping = threading.Thread(target=scrape, args=(stopped,))
        if not options.control:
            scraping.start()
        try:
            for epoch in range(1, options.runs + 1):
                first, second = (watched, plain) if epoch % 2 else (plain, watched)
                found = {
                    id(fleet): await rates(fleet, options.episodes, options.admitted, epoch)
                    for fleet in (first, second)
                }
                ours, theirs = found[id(watched)], found[id(plain)]
                runs.append((ours[0], theirs[0]))
                processor.append((ours[1], theirs[1]))
                print(f"with metrics {ours[0]:.1f}, without {theirs[0]:.1f} rollouts/s", flush=True)
        finally:
            stopped.set()
            if not options.control:
                scraping.join()
    cost = Figure("metrics_cost_processor", "rollouts/s", tuple(processor))
    return [Figure("metrics_cost", "rollouts/s", tuple(runs)), cost]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=640)
    parser.add_argument("--ours-alone", action="store_true", help="without vLLM's own metrics")
    parser.add_argument("--control", action="store_true", help="without metrics on either side")
    parser.add_argument("--admitted", type=int, default=192, help="concurrent episodes")
    report(asyncio.run(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
