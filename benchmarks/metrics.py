"""What metrics cost: rollouts a second on one engine with metrics, vLLM's own among them, and without.

    python -m benchmarks.metrics [--runs 3] [--episodes 640] [--admitted 192] [--ours-alone] [--control]

Two fleets stand side by side, each with an engine, a dispatcher and a grader pool of its own; one of them tells its
metrics at a port that is asked every second, fifteen times as often as usual. They work in turn, on the ledger's test
rows with tools that answer at once, so that nothing hides what metrics cost. The second figure, rollouts a second of
processor time of episodes and engine, says more where other work runs on the machine. With `--control` neither fleet
has metrics: what the ratio is then, is noise.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
import urllib.request

from actors.runtime.exporter import MetricsAddress
from benchmarks.common import Figure, report
from benchmarks.worker import LedgerFleet, ledger_fleets
from trainer.types import GroupRequest

SLOTS = 64
PORT = 9465
ASKED_EVERY_S = 1.0


async def rates(ledger: LedgerFleet, count: int, admitted: int, epoch: int) -> tuple[float, float]:
    """Rollouts a second, and a second of processor time, of `count`, `admitted` at a time, from an empty prefix cache
    on.
    """
    await ledger.worker.forget.remote()
    tasks, places = ledger.prepared.test, asyncio.Semaphore(admitted)

    async def one(index: int) -> None:
        async with places:
            request = GroupRequest(tasks[index % len(tasks)], epoch, index, 1, "test", 1.0)
            (await ledger.fleet.sample(request)).rollouts[0]

    begun, spent = time.monotonic(), await ledger.worker.processor_s.remote()
    await asyncio.gather(*(one(index) for index in range(count)))
    return count / (time.monotonic() - begun), count / (await ledger.worker.processor_s.remote() - spent)


def ask(stopped: threading.Event) -> None:
    """As Prometheus does."""
    while not stopped.wait(ASKED_EVERY_S):
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=30) as answer:
            assert b"agent_rft_engine_slots" in answer.read()


async def measure(options: argparse.Namespace) -> list[Figure]:
    runs, processor, stopped = [], [], threading.Event()
    place = None if options.control else MetricsAddress("bench", "127.0.0.1", PORT)
    async with ledger_fleets(SLOTS, [place, None], vllms_own=not options.ours_alone) as (watched, plain):
        for fleet in (watched, plain):
            await rates(fleet, 2 * SLOTS, SLOTS, epoch=0)  # warms connections and compiled code up
        asking = threading.Thread(target=ask, args=(stopped,))
        if not options.control:
            asking.start()
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
                print(f"with metrics {ours[0]:.1f}, without {theirs[0]:.1f} rollouts a second", flush=True)
        finally:
            stopped.set()
            if not options.control:
                asking.join()
    cost = Figure("metrics_cost_processor", "rollouts/s", tuple(processor))
    return [Figure("metrics_cost", "rollouts/s", tuple(runs)), cost]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=640)
    parser.add_argument("--ours-alone", action="store_true", help="without vLLM's own metrics")
    parser.add_argument("--control", action="store_true", help="without metrics on either side")
    parser.add_argument("--admitted", type=int, default=192, help="episodes under way at a time")
    report(asyncio.run(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
