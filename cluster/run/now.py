"""now.json of a run folder: what engines, learner ranks, helpers and endpoints do at this moment; and outages.

It is written every few seconds while the actors of a run live, and removed with them; after a kill it is old. Histories
are in Prometheus.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from agent_rft.actors.endpoints.stats import quantile_s
from agent_rft.actors.rollout.fleet import EngineState
from agent_rft.actors.runtime.watchdog import Seen
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.events import EndpointOutageBegan, EndpointOutageEnded
from agent_rft.protocols import Emit

EVERY_S = 3.0
WINDOW = 20
"""Latencies, calls and errors are those of so many of the last writes: a minute."""


Stats = Mapping[str, Mapping[str, Any]]
"""EndpointClient.stats of all processes of a job, added up, by endpoint."""


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage that has not ended: its start in Unix seconds, and the counts of its endpoint before it."""

    began_at: float
    delayed: int
    failed: int

    def delayed_calls(self, values: Mapping[str, Any]) -> int:
        return max(0, int(values["delayed"]) - self.delayed)

    def failed_calls(self, values: Mapping[str, Any]) -> int:
        return max(0, int(values["failed"]) - self.failed)


class EndpointOutages:
    """Finds outages by the stats that `observe` gets every few seconds.

    An endpoint is down while the breaker of any process is not closed. A breaker that opened and closed between two
    calls is found by its count.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._before: Stats = {}
        self._at = 0.0
        self.current: dict[str, Outage] = {}

    def observe(self, now: float, stats: Stats) -> None:
        """Emit an event for each outage that began or ended since the last call; `now` is in Unix seconds."""
        for name, values in stats.items():
            before = self._before.get(name, {})
            is_down = values["breaker"] != "closed"
            if name not in self.current and (is_down or values["outages"] > before.get("outages", 0)):
                began_at = now if is_down else self._at
                self.current[name] = Outage(began_at, before.get("delayed", 0), before.get("failed", 0))
                self._emit(EndpointOutageBegan(endpoint=name))
            if name in self.current and not is_down:
                outage = self.current.pop(name)
                self._emit(
                    EndpointOutageEnded(
                        endpoint=name,
                        began_at=outage.began_at,
                        seconds=now - outage.began_at,
                        delayed_calls=outage.delayed_calls(values),
                        failed_calls=outage.failed_calls(values),
                    )
                )
        self._before, self._at = stats, now


class Watching(Protocol):
    """The part of agent_rft.actors.runtime.watchdog.Watchdog that is needed here."""

    @property
    def seen(self) -> list[Seen]: ...


class Engines(Protocol):
    """The part of agent_rft.actors.rollout.fleet.Fleet that is needed here."""

    def engines(self) -> list[EngineState]: ...
    async def endpoint_stats(self) -> dict[str, dict[str, Any]]: ...


class NowFile:
    """Writes the file until `close`, and emits the outages of endpoints.

    `fleet` is None for a job without rollouts; `clock` returns Unix seconds.
    """

    def __init__(
        self,
        run: Path,
        watchdog: Watching,
        fleet: Engines | None,
        emit: Emit,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = RunFolder(run).now
        self._watchdog = watchdog
        self._fleet = fleet
        self._outages = EndpointOutages(emit)
        self._sleep = sleep
        self._clock = clock
        self._before: deque[tuple[float, Stats]] = deque(maxlen=WINDOW)
        self._file = threading.Lock()
        self._closed = False
        self._writing = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Write nothing more, and remove the file, after a write that is under way."""
        self._writing.cancel()
        await asyncio.to_thread(self._remove)

    async def _run(self) -> None:
        while True:
            state = await self._state()
            with suppress(OSError):  # the next write is another occasion; training goes on
                await asyncio.to_thread(self._replace, state)
            await self._sleep(EVERY_S)

    def _replace(self, state: Mapping[str, Any]) -> None:
        with self._file:
            if not self._closed:
                temporary = self._path.with_suffix(".tmp")
                temporary.write_text(json.dumps(state))
                os.replace(temporary, self._path)

    def _remove(self) -> None:
        with self._file:  # a thread that writes outlives the task that waited for it
            self._closed = True
            for path in (self._path, self._path.with_suffix(".tmp")):
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    async def _state(self) -> dict[str, Any]:
        fleet, now = self._fleet, self._clock()
        stats: Stats = {} if fleet is None else await fleet.endpoint_stats()
        self._before.append((now, stats))
        self._outages.observe(now, stats)
        return {
            "at": now,
            "engines": [] if fleet is None else [asdict(engine) for engine in fleet.engines()],
            "actors": [asdict(seen) for seen in self._watchdog.seen],
            "endpoints": endpoints_now(self._before, self._outages.current),
        }


def endpoints_now(
    before: Sequence[tuple[float, Stats]], outages: Mapping[str, Outage] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """The endpoints of the last stats; what has grown since the first ones is that of the time between them."""
    (began, first), (now, last) = before[0], before[-1]
    return [
        _endpoint(name, values, first.get(name, {}), now - began) | _outage(outages.get(name), values, now)
        for name, values in sorted(last.items())
    ]


def _outage(outage: Outage | None, values: Mapping[str, Any], now: float) -> dict[str, Any]:
    if outage is None:
        return {"down_s": None, "delayed_calls": 0}
    return {"down_s": now - outage.began_at, "delayed_calls": outage.delayed_calls(values)}


def _endpoint(name: str, values: Mapping[str, Any], first: Mapping[str, Any], for_s: float) -> dict[str, Any]:
    was = first.get("latency_counts", [0] * len(values["latency_counts"]))
    grown = [new - old for new, old in zip(values["latency_counts"], was, strict=True)]
    if min(grown) < 0:  # a process has started again
        grown, first = list(values["latency_counts"]), {}
    errors = {kind: count - first.get("errors", {}).get(kind, 0) for kind, count in values["errors"].items()}
    return {
        "name": name,
        **{key: values[key] for key in ("limit", "in_flight", "queued", "breaker", "calls", "failed", "retries")},
        "recent_s": for_s,
        "recent_calls": values["calls"] - first.get("calls", 0),
        "recent_errors": {kind: count for kind, count in errors.items() if count > 0},
        "errors": values["errors"],
        "latency_p50_s": quantile_s(grown, 0.5),
        "latency_p95_s": quantile_s(grown, 0.95),
    }
