"""Writer of status.json in a run folder: state of engines, learner ranks, dispatchers, grader pool and endpoints.

The file is rewritten every few seconds while the run's actors are alive, and then removed. If the driver is killed, an
outdated file remains. The history of these values is in Prometheus. The module also reports endpoint outages.
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

from agent_rft.actors.endpoints.endpoint_statistics import compute_quantile_s
from agent_rft.actors.rollout.fleet import EngineState
from agent_rft.actors.runtime.watchdog import ActorSnapshot
from agent_rft.cluster.records.run_folder import RunFolder
from agent_rft.events import EndpointOutageEnded, EndpointOutageStarted
from agent_rft.loop_protocols import Emit

EVERY_S = 3.0
WINDOW = 20
"""Number of recent writes of the status file that the statistics cover. 20 writes take about one minute."""


Stats = Mapping[str, Mapping[str, Any]]
"""Values of `EndpointClient.stats` by endpoint, summed over all processes of a job."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Ongoing outage of an endpoint.

    `started_at` is in Unix seconds. `delayed_before` and `failed_before` are the numbers of delayed and failed calls
    before the outage.
    """

    started_at: float
    delayed_before: int
    failed_before: int

    def delayed_calls(self, values: Mapping[str, Any]) -> int:
        return max(0, int(values["delayed"]) - self.delayed_before)

    def failed_calls(self, values: Mapping[str, Any]) -> int:
        return max(0, int(values["failed"]) - self.failed_before)


class EndpointOutages:
    """Detects endpoint outages from the stats passed to `observe` every few seconds.

    An endpoint is down while its breaker is open or half-open in at least one process. If a breaker opens and closes
    between two calls of `observe`, the outage is detected because the endpoint's outage count has increased.
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
                started_at = now if is_down else self._at
                self.current[name] = Outage(started_at, before.get("delayed", 0), before.get("failed", 0))
                self._emit(EndpointOutageStarted(endpoint=name))
            if name in self.current and not is_down:
                outage = self.current.pop(name)
                self._emit(
                    EndpointOutageEnded(
                        endpoint=name,
                        started_at=outage.started_at,
                        duration_s=now - outage.started_at,
                        delayed_calls=outage.delayed_calls(values),
                        failed_calls=outage.failed_calls(values),
                    )
                )
        self._before, self._at = stats, now


class ActorWatchdog(Protocol):
    """The part of agent_rft.actors.runtime.watchdog.Watchdog that this module uses."""

    @property
    def last_answers(self) -> list[ActorSnapshot]: ...


class FleetStatus(Protocol):
    """The part of agent_rft.actors.rollout.fleet.Fleet that this module uses."""

    def engine_states(self) -> list[EngineState]: ...
    async def endpoint_stats(self) -> dict[str, dict[str, Any]]: ...


class LiveStatusFile:
    """Writes status.json until `close`, and emits events for endpoint outages.

    `fleet` is None for a job without rollouts; `clock` returns Unix seconds.
    """

    def __init__(
        self,
        run: Path,
        watchdog: ActorWatchdog,
        fleet: FleetStatus | None,
        emit: Emit,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = RunFolder(run).status_file
        self._watchdog = watchdog
        self._fleet = fleet
        self._outages = EndpointOutages(emit)
        self._sleep = sleep
        self._clock = clock
        self._before: deque[tuple[float, Stats]] = deque(maxlen=WINDOW)
        self._file_lock = threading.Lock()
        self._closed = False
        self._writer = asyncio.create_task(self._write_repeatedly())

    async def close(self) -> None:
        """Stop writing, wait for a write in progress, and remove the file."""
        self._writer.cancel()
        await asyncio.to_thread(self._remove_file)

    async def _write_repeatedly(self) -> None:
        while True:
            state = await self._read_state()
            with suppress(OSError):  # training continues, and the next write tries again
                await asyncio.to_thread(self._write_file, state)
            await self._sleep(EVERY_S)

    def _write_file(self, state: Mapping[str, Any]) -> None:
        with self._file_lock:
            if not self._closed:
                temporary = self._path.with_suffix(".tmp")
                temporary.write_text(json.dumps(state))
                os.replace(temporary, self._path)

    def _remove_file(self) -> None:
        with self._file_lock:  # a writing thread may outlive the cancelled task
            self._closed = True
            for path in (self._path, self._path.with_suffix(".tmp")):
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    async def _read_state(self) -> dict[str, Any]:
        fleet, now = self._fleet, self._clock()
        stats: Stats = {} if fleet is None else await fleet.endpoint_stats()
        self._before.append((now, stats))
        self._outages.observe(now, stats)
        return {
            "at": now,
            "engines": [] if fleet is None else [asdict(engine) for engine in fleet.engine_states()],
            "actors": [asdict(seen) for seen in self._watchdog.last_answers],
            "endpoints": describe_endpoints(self._before, self._outages.current),
        }


def describe_endpoints(
    history: Sequence[tuple[float, Stats]], outages: Mapping[str, Outage] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Return the current state of each endpoint.

    `history` has pairs of time and stats, oldest first. Latencies and values named `recent_...` cover the time between
    the first and the last pair; all other values are from the last pair.
    """
    (began, first), (now, last) = history[0], history[-1]
    return [
        _describe_endpoint(name, values, first.get(name, {}), now - began)
        | _describe_outage(outages.get(name), values, now)
        for name, values in sorted(last.items())
    ]


def _describe_outage(outage: Outage | None, values: Mapping[str, Any], now: float) -> dict[str, Any]:
    if outage is None:
        return {"down_s": None, "delayed_calls": 0}
    return {"down_s": now - outage.started_at, "delayed_calls": outage.delayed_calls(values)}


def _describe_endpoint(
    name: str, values: Mapping[str, Any], first: Mapping[str, Any], window_s: float
) -> dict[str, Any]:
    was = first.get("latency_counts", [0] * len(values["latency_counts"]))
    grown = [new - old for new, old in zip(values["latency_counts"], was, strict=True)]
    if min(grown) < 0:  # a process restarted, so its counts began at 0
        grown, first = list(values["latency_counts"]), {}
    errors = {kind: count - first.get("errors", {}).get(kind, 0) for kind, count in values["errors"].items()}
    return {
        "name": name,
        **{key: values[key] for key in ("limit", "in_flight", "queued", "breaker", "calls", "failed", "retries")},
        "recent_s": window_s,
        "recent_calls": values["calls"] - first.get("calls", 0),
        "recent_errors": {kind: count for kind, count in errors.items() if count > 0},
        "errors": values["errors"],
        "latency_p50_s": compute_quantile_s(grown, 0.5),
        "latency_p95_s": compute_quantile_s(grown, 0.95),
    }
