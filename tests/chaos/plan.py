"""The faults of a server, as data: with the same seed, the same calls get the same faults in every run."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Literal

from pydantic import TypeAdapter

Kind = Literal[
    "429",
    "500",
    "502",
    "503",
    "404",
    "401",
    "drop",  # closes without a response
    "reset",  # resets the connection within the body
    "hang",  # never answers
    "drip",  # a byte at a time
    "huge",  # larger than any limit
    "broken_json",
    "wrong_type",  # a score that is a string, NaN, null or a bool; a missing output
    "too_short",  # less than its Content-Length says
    "too_long",  # more than its Content-Length says
]

DRY_RUN = "_dry_run_"
"""Occurs in the ids of a job's dry run. `shares` leave these calls out, bursts do not: if one fails, the job does not
start."""


@dataclass(frozen=True)
class Latency:
    """A latency: log-normal if `p99_s` is given, else always `median_s`."""

    median_s: float = 0.0
    p99_s: float | None = None

    def at(self, quantile: float) -> float:
        """The latency in seconds at a quantile in (0, 1)."""
        if self.p99_s is None or self.median_s == 0:
            return self.median_s
        sigma = math.log(self.p99_s / self.median_s) / NormalDist().inv_cdf(0.99)
        return self.median_s * math.exp(sigma * NormalDist().inv_cdf(quantile))


@dataclass(frozen=True)
class Burst:
    """A period in which a `share` of requests gets the fault `kind`.

    It starts `from_s` after the first request and lasts `duration_s`. A 429 or 503 has a Retry-After of
    `retry_after_s`, as a date if `as_date`.
    """

    kind: Kind
    from_s: float
    duration_s: float
    share: float = 1.0
    retry_after_s: float | None = None
    as_date: bool = False


@dataclass(frozen=True)
class Faults:
    """The faults of one endpoint.

    `shares` has the fraction of requests that fail, by kind; if `sticky`, the fraction of calls, so that retries do not
    help. `drip_s` is the pause after each byte.
    """

    latency: Latency = Latency()
    shares: dict[Kind, float] = field(default_factory=dict)
    sticky: bool = False
    bursts: tuple[Burst, ...] = ()
    drip_s: float = 1.0


@dataclass(frozen=True)
class Plan:
    """Faults by endpoint ("tool/search", "grade", "session/start", "session/end").

    Calls are identified by their ids, or by their content if ids differ in each run.
    """

    seed: int = 0
    endpoints: dict[str, Faults] = field(default_factory=dict)
    key_by: Literal["id", "content"] = "id"

    @classmethod
    def read(cls, path: Path) -> Plan:
        return _PLAN.validate_json(path.read_bytes())

    def write(self, path: Path) -> None:
        path.write_bytes(_PLAN.dump_json(self, indent=2))

    def faults(self, endpoint: str) -> Faults:
        return self.endpoints.get(endpoint, Faults())

    def chance(self, *parts: object) -> float:
        """A number in (0, 1), determined by the seed and `parts`."""
        digest = hashlib.blake2b(repr((self.seed, *parts)).encode(), digest_size=8).digest()
        return (int.from_bytes(digest) + 0.5) / 2**64

    def latency_s(self, endpoint: str, key: str, attempt: int) -> float:
        return self.faults(endpoint).latency.at(self.chance("latency", endpoint, key, attempt))

    def fault(self, endpoint: str, key: str, attempt: int, at_s: float) -> tuple[Kind | None, Burst | None]:
        """The fault of one request `at_s` seconds after the first one, and the burst that it belongs to."""
        faults = self.faults(endpoint)
        for burst in faults.bursts:
            inside = burst.from_s <= at_s < burst.from_s + burst.duration_s
            if inside and self.chance("burst", endpoint, key, attempt) < burst.share:
                return burst.kind, burst
        if DRY_RUN in key:
            return None, None
        chance = self.chance("fault", endpoint, key, 0 if faults.sticky else attempt)
        for kind, share in faults.shares.items():
            if chance < share:
                return kind, None
            chance -= share
        return None, None


_PLAN = TypeAdapter(Plan)
