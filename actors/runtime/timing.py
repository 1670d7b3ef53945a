"""Clocks, sleep and jitter as one object that tests can replace."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Sources of time and randomness; clocks and sleeps use seconds, `jitter` returns numbers in [0, 1)."""

    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.random


REAL_TIMING = Timing()
