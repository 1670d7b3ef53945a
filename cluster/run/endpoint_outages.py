"""Outages of endpoints: events when one begins or ends, and for how long those that go on have lasted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.events import EndpointOutageBegan, EndpointOutageEnded
from trainer.protocols import Emit

Stats = Mapping[str, Mapping[str, Any]]
"""EndpointClient.stats of all processes of a job, added up, by endpoint."""


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage that goes on: when it began, in Unix seconds, and the counts of its endpoint before."""

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
