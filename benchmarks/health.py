"""The slowest answer of /health while hostile requests arrive one after the other, against a quiet server.

    python -m benchmarks.health [--runs 3]

The requests are those of tests/attacks/test_bodies.py that cost most, each below 1 MB, to all kinds of routes. They are
sent by a process of their own. The API has a process of its own too, without Ray. Aim: 250 ms.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from benchmarks.common import Figure, report
from tests.support.api_process import Server, api_process
from tests.support.hostile_requests import PLACES, WIDE

EVERY_S = 0.01
QUIET_S = 3.0


def attack(server: Server) -> None:
    """Send each value to each place."""
    with server.client() as client:
        for place in PLACES.values():
            for value in WIDE.values():
                client.post(place.path, content=place.body(value), headers={"Content-Type": "application/json"})


def slowest_ms(server: Server, goes_on: Callable[[], bool]) -> float:
    slowest = 0.0
    with server.client() as client:
        client.get("/health")
        while goes_on():
            started = time.perf_counter()
            client.get("/health").raise_for_status()
            slowest = max(slowest, time.perf_counter() - started)
            time.sleep(EVERY_S)
    return slowest * 1_000


def attacked_ms(server: Server) -> float:
    attacker = get_context("spawn").Process(target=attack, args=(server,))
    attacker.start()
    found = slowest_ms(server, attacker.is_alive)
    assert attacker.exitcode == 0
    return found


def quiet_ms(server: Server) -> float:
    end = time.perf_counter() + QUIET_S
    return slowest_ms(server, lambda: time.perf_counter() < end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, api_process(Path(folder), {}) as server:
        attack(server)  # the first requests import and compile, which no attack can repeat
        runs = tuple((attacked_ms(server), quiet_ms(server)) for _ in range(options.runs))
    report([Figure("slowest /health under attack", "ms", runs)])


if __name__ == "__main__":
    main()
