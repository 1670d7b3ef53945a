"""Log-normal waiting times: most answers take about the median, a few take very long, as with real tools."""

import math
import random
from statistics import NormalDist
from typing import Final

_Z99: Final = NormalDist().inv_cdf(0.99)


class Latency:
    """Waiting times with a given median and 99th percentile, the same sequence for the same seed."""

    def __init__(self, median_s: float, p99_s: float, seed: int = 0) -> None:
        """Raises ValueError unless 0 < median_s <= p99_s."""
        if not 0 < median_s <= p99_s:
            raise ValueError(f"wanted 0 < median <= p99, got {median_s} and {p99_s} seconds")
        self._mu = math.log(median_s)
        self._sigma = math.log(p99_s / median_s) / _Z99
        self._rng = random.Random(seed)

    def draw_s(self) -> float:
        """The next waiting time in seconds."""
        return self._rng.lognormvariate(self._mu, self._sigma)
