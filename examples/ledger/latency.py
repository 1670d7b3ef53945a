"""Log-normal latencies: most responses take about the median time, and a few take very long, as with real tools."""

import math
import random
from statistics import NormalDist
from typing import Final

_Z99: Final = NormalDist().inv_cdf(0.99)


class Latency:
    """Random latencies with a given median and 99th percentile; the same seed gives the same sequence."""

    def __init__(self, median_s: float, p99_s: float, seed: int = 0) -> None:
        """Raise ValueError unless 0 < median_s <= p99_s."""
        if not 0 < median_s <= p99_s:
            raise ValueError(f"latencies must satisfy 0 < median <= p99, but are {median_s} and {p99_s} seconds")
        self._mu = math.log(median_s)
        self._sigma = math.log(p99_s / median_s) / _Z99
        self._rng = random.Random(seed)

    def draw_s(self) -> float:
        """Return the next latency in seconds."""
        return self._rng.lognormvariate(self._mu, self._sigma)
