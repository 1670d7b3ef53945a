"""Unbiased estimator of pass@k."""

from __future__ import annotations

from math import comb


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Return the probability that at least one of k samples, chosen at random from n samples, passes.

    `correct` of the n samples pass. The formula is 1 - C(n - correct, k) / C(n, k): Chen et al. 2021, arXiv:2107.03374,
    equation 1. A `k` above n counts as n.
    """
    k = min(k, n)
    return 1.0 - comb(n - correct, k) / comb(n, k)
